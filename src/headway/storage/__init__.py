"""Run directories and checkpoints, on disk and in object stores: writing, recovery and reading."""
