"""A training process: its entry point, its connection to the controller, and the session that user code uses."""
