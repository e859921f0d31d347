"""Adapters from older vocabularies of Ray to the same core."""
