"""Configs, errors, messages and schemas that all other packages share. Imports no other package of Headway."""
