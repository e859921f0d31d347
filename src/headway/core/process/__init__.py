"""Processes and what the operating system knows of them: identity, title, standard streams, temporary directories."""
