"""The resources of this machine: what there is, who holds what, and the queue of those that wait."""
