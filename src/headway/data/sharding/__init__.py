"""Which rows each rank reads in each step. Pure."""
