"""Loaders to compare: torch's and ours in `plain`, those of other packages in `packaged`.

`peer_server` runs one of them in a separate process, by default with the interpreter of
``.venv-peers`` (``make bench-peers``, see `install`). Except for ours, they import nothing else of
this project. Each is configured as its documentation recommends for data that fit into memory;
files are in the page cache.
"""
