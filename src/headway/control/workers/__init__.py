"""The start and the end of an attempt's workers: rank assignment, start messages, slow exits."""
