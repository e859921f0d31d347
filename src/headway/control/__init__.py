"""The controller of a run: one pure state machine, one event queue, one owner of the run's state."""
