"""Ways along a network: points on its edges in, shortest distances between them out.

Face: :class:`Track`, :class:`Places`, :func:`check_network`, and how places are found.
"""

from geoprep.roads.paths.checks import check_network
from geoprep.roads.paths.distances import Track, distances, track_of
from geoprep.roads.paths.places import Places, nearest_places, nodes_as_places, spaced_places

__all__ = [
    "Places",
    "Track",
    "check_network",
    "distances",
    "nearest_places",
    "nodes_as_places",
    "spaced_places",
    "track_of",
]
