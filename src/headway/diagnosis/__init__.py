"""Explains why ranks stalled or failed: stacks, what they wait for, who is to blame."""
