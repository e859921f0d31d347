"""Adapters from older Ray APIs to Headway's core."""
