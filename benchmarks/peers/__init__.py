"""Other loaders on the same tiles: one file each, read by :mod:`benchmarks.peers.run`.

A peer is a module with

- ``PACKAGES``, what it needs beyond NumPy and torch;
- ``prepare(task, out)``, which writes the tiles in the peer's own format into a new folder, once
  and untimed;
- ``open_loader(task, source)``, which returns what can be iterated epoch after epoch, shuffled,
  and yields pairs of tensors: images and masks of ``task.batch_size`` tiles;
- ``GREY``, what an image has to be multiplied with to get its bytes back.

Each is set up as its own documentation advises for data that fit into memory; files are read from
a warm page cache. Peers run in processes of their own, by default with the interpreter of
``.venv-peers`` (``make bench-peers``), and import nothing of this project but this folder.
"""
