"""Stores larger than memory: tiles read ahead within a limit, shuffled over a window.

In come opened stores and a limit of memory; out come tiles whose batches are filled while they
are read. Face: `StreamTiles`.
"""

from loaders.stream.tiles import StreamTiles

__all__ = ["StreamTiles"]
