"""Output for people: console, status line, log tails, logging, tracebacks, metric trackers."""
