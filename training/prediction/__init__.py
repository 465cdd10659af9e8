"""Images to predictions: a GeoTIFF and a runner in, a GeoTIFF of probabilities and speeds out."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
