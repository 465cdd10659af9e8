"""Road networks as files, frames and graphs of networkx."""
