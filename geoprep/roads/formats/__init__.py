"""Networks as files: one network in, one file out, and back.

Face: :func:`write_network`, :func:`read_network`, :func:`to_networkx`, :func:`from_networkx`,
:func:`write_csv` (SpaceNet's table, which holds pixels, not ground).
"""

from geoprep.roads.formats.files import SUFFIXES, check_target, read_network, write_network
from geoprep.roads.formats.graphs import from_networkx, to_networkx
from geoprep.roads.formats.spacenet import ImageRoads, write_csv

__all__ = [
    "SUFFIXES",
    "ImageRoads",
    "check_target",
    "from_networkx",
    "read_network",
    "to_networkx",
    "write_csv",
    "write_network",
]
