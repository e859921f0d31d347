"""Older vocabularies as thin faces over the same core."""
