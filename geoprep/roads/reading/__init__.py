"""Road networks from label files, SpaceNet's tables and adjacency dictionaries."""
