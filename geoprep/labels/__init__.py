"""Labels: read vector or raster label files and convert them to label bytes on a scene's grid.

Public API for vectors: :func:`read_roads`, :class:`LabelRoads`, :class:`SpeedRule`,
:func:`speed_polygons`, :func:`burn`; for rasters: :func:`read_mask`, :class:`MaskRule`,
:func:`majority`.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
