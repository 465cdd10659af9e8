"""Road labels: a label file and a rule for speeds in, lines with a speed and their masks out.

Face: :func:`read_roads`, :class:`Roads`, :class:`SpeedRule`, :func:`speed_polygons`, :func:`burn`
of vectors; :func:`read_mask`, :class:`MaskRule`, :func:`majority` of rasters.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
