"""The process of a worker: its setup, its signals, and the threads that it cannot do without."""
