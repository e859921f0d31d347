"""Where rows come from: files, memory, and views of other sources."""
