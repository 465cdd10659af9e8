"""Road networks: a map of roads and speeds in, a routable graph with travel times and its score out."""
