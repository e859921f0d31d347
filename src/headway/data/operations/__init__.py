"""The operations of a dataset: map, filter, sort, group, write."""
