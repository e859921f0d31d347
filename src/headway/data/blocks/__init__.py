"""Rows in memory: chunks of columns, and tensors as columns."""
