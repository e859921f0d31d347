"""Shipped for tests, ours and yours: an engine without processes."""
