"""What people look at: a store in; figures, pictures, GeoTIFFs and footprints out.

Face: the functions behind ``geoprep info``, ``preview`` and ``export``, and the colours of speeds.
"""

from geoprep.palette import (
    GROUND,
    NODATA_GREYS,
    SPEED_COLOURS,
    bin_label,
    speed_bin,
    speed_colours,
)
from geoprep.views.facts import info, print_info
from geoprep.views.footprints import export_footprints
from geoprep.views.geotiff import export_scene
from geoprep.views.pixels import natural_bands

__all__ = [
    "GROUND",
    "NODATA_GREYS",
    "SPEED_COLOURS",
    "bin_label",
    "export_footprints",
    "export_scene",
    "info",
    "natural_bands",
    "print_info",
    "speed_bin",
    "speed_colours",
]
