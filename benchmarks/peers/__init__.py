"""Other loaders on the same tiles: torch's and ours in `plain`, those of packages in `packaged`.

`session` runs one of them in a process of its own, by default with the interpreter of
``.venv-peers`` (``make bench-peers``, see `install`); but for ours they import nothing else of this
project. Each is set up as its own documentation advises for data that fit into memory; files are
read from a warm page cache.
"""
