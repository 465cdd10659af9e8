"""Planning of a build: scenes and options in, tiles and shards out, before pixels are read."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
