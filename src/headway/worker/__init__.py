"""One training process: its entry point, its end of the wire, and the session that user code talks to."""
