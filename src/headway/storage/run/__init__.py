"""The run directory: layout, opening, journal, reading, removal."""
