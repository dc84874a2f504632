"""A Penstock service seen as a store: the same worker, commands and apps run on it unchanged."""
