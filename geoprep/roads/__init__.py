"""Road networks: rasters of roads and speeds in, a routable graph and its score out."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
