"""Runs in an object store: the same guarantees as on disk, without renames."""
