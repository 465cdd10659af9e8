"""Labels: read vector or raster label files and convert them to label bytes on a grid."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
