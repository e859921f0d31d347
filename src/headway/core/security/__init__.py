"""Signatures of files, redaction of secrets, text that is safe to print."""
