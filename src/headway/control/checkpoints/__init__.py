"""The execution of the state machine's checkpoint decisions: commits, retention, validations."""
