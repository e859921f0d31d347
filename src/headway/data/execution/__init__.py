"""Execution of data pipelines: epochs, block readers, map processes, statistics."""
