"""Suites that every implementation of a contract passes: engines, stores, data sources, frameworks, trackers.

Subclass a suite in a test module and provide the fixture that it names; pytest runs its tests on your implementation.
These modules import pytest.
"""
