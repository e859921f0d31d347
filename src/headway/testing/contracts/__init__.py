"""Test suites that every implementation of a contract passes: engines, stores, data sources, frameworks, trackers.

Subclass a suite in a test module and override what it asks for; pytest then runs its tests on your implementation.
These modules import pytest.
"""
