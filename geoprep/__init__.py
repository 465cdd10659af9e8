"""Satellite imagery and labels to uint8 Zarr stores, and predictions to road networks.

>>> import geoprep as gp
>>> store = gp.open_store("moscow.zarr")  # doctest: +SKIP

Public names are imported when they are used.
"""

import lazy_loader as lazy

__version__ = "0.3.0.dev0"

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
