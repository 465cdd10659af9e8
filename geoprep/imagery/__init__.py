"""A window of a raster in, uint8 (y, x, band) out: nodata, area averages, rescaling.

Face: :func:`read_pixels` and :func:`render`, what the limits between them are made from, and
:class:`TileCounts` for what came out.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
