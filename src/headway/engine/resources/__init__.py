"""The resources of this machine: the inventory, the leases of runs, and the queue of waiting requests."""
