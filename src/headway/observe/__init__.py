"""Looking without touching: the console, log tails, tracebacks."""
