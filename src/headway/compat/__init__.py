"""Adapters from older APIs of Ray to the same core."""
