"""Starts and ends the workers of an attempt: rank assignment, start messages, slow exits."""
