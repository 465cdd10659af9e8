"""Plans a city from a place and a seed: zones, roads with attributes, black borders."""
