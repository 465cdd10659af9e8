"""The store: its schema and byte layout, and reading and writing it.

:class:`StoreReader` opens a store. ``schema`` and ``layout`` define the format, ``writer`` and
``shards`` write it, ``scenes`` and ``tiles`` read whole scenes and single tiles.
"""
