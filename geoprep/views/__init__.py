"""Views of stores and road networks: figures, pictures, an HTML page, GeoTIFFs and footprints.

These are the functions behind ``geoprep info``, ``preview`` and ``export``.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
