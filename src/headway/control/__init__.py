"""Decides: one pure machine, one inbox, one owner of the run's state."""
