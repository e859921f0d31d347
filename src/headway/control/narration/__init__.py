"""The record of what happens to a run: journal, console lines, callbacks, failure bundles."""
