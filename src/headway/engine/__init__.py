"""Engines, which start processes, exchange bytes with them and detect their exit."""
