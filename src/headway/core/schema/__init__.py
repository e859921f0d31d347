"""Schemas of files and their records: a frozen, versioned dataclass for every persisted value."""
