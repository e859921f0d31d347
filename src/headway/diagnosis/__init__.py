"""Explains why ranks stand still or failed: stacks, what they wait for, who is to blame."""
