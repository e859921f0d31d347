"""The process of a worker: its setup, its signals, and its vital threads."""
