"""Checkpoints on disk: staging, commit, manifest, retention, recovery."""
