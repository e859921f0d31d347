"""Executes the checkpoint decisions of the state machine: commits, retention, validations."""
