"""What :mod:`geoprep.verify` looks at: metadata, tables, then every shard and pixel."""
