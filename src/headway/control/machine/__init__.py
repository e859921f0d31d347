"""The pure state machine of a run: ``transitions.step(run, event) -> (run, actions)``."""
