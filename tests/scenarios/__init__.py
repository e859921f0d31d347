"""Trainings that are disturbed on purpose, and checks of what is left: shared by tests and benchmarks."""
