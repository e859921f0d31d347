"""Framework adapters, which form process groups from ranks; each is imported only if it is used."""
