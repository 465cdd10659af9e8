"""What people look at: a store in; figures, pictures, GeoTIFFs and footprints out.

Face: the functions behind ``geoprep info``, ``preview`` and ``export``, and the colours of speeds.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
