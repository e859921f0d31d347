"""Where files live: the run directory, checkpoints, and what can be read back from them."""
