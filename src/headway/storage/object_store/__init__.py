"""Runs in an object store: the same promises without renames."""
