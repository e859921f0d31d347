"""The shape of files and of the records in them: every persisted value has a frozen, versioned dataclass here."""
