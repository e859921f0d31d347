"""The resources of this machine: how much exists, which run holds what, and the queue of waiting runs."""
