"""Turns a trainer into a run: request, packing, signals, execution."""
