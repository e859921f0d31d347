"""Sources of rows: files, memory, and views of other sources."""
