"""Writes reported checkpoints from the worker to staging, in the run directory or in an object store."""
