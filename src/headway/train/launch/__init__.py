"""The path from a trainer to a run: request, packing, signals, execution."""
