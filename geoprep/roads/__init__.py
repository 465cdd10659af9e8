"""Road networks: rasters of roads and speeds in, a routable graph and its score out."""
