"""Test utilities for Headway and its users: an engine without processes, and contract suites."""
