"""Road networks: a map of roads and speeds in, a routable graph and its score out."""
