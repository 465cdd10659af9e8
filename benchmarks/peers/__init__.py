"""Loaders to compare.

Torch's and ours are in `plain`, those of other packages in `packaged` and `geospatial`.

`peer_server` runs one of them in a separate process, by default with the interpreter of
``.venv-peers`` (``make bench-peers``, see `install`). Except for ours, they import nothing else of
this project. Each is configured as its documentation recommends for data that fit into memory;
files are in the page cache.
"""
