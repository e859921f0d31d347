"""The assignment of rows to ranks and steps. Pure."""
