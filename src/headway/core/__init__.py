"""Configs, errors, messages and schemas that all other packages share. It imports no other Headway package."""
