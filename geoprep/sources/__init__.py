"""Where scenes come from: a folder, an archive, a bucket or file patterns in, scenes out.

Face: :class:`Scene` and :class:`Found`; :func:`find_scenes` for SpaceNet's cities,
:func:`images_and_labels` for any other imagery, :func:`fetch` to bring them to the local disk.
"""

from geoprep.sources.cities import CITIES, City, get_city
from geoprep.sources.download import fetch, remote_scenes
from geoprep.sources.patterns import images_and_labels
from geoprep.sources.scene import Found, Scene
from geoprep.sources.spacenet import find_scenes

__all__ = [
    "CITIES",
    "City",
    "Found",
    "Scene",
    "fetch",
    "find_scenes",
    "get_city",
    "images_and_labels",
    "remote_scenes",
]
