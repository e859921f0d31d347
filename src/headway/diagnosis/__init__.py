"""The diagnosis of ranks that stalled or failed: stacks, what they wait for, which rank is to blame."""
