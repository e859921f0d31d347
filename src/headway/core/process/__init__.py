"""Operating system processes: their identity, title, standard streams and temporary directories."""
