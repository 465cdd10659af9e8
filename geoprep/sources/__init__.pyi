from .archives import INSIDE as INSIDE
from .archives import SUFFIXES as SUFFIXES
from .archives import brought as brought
from .cities import CITIES as CITIES
from .cities import City as City
from .cities import get_city as get_city
from .download import fetch as fetch
from .download import remote_scenes as remote_scenes
from .matching import IMAGE_SUFFIXES as IMAGE_SUFFIXES
from .matching import LABEL_SUFFIXES as LABEL_SUFFIXES
from .patterns import images_and_labels as images_and_labels
from .published import (
    bytes_to_download as bytes_to_download,
)
from .published import (
    check_free_space as check_free_space,
)
from .published import (
    download_files as download_files,
)
from .published import (
    list_archives as list_archives,
)
from .published import (
    list_files as list_files,
)
from .scene import Found as Found
from .scene import Scene as Scene
from .scene import natural_key as natural_key
from .spacenet import find_scenes as find_scenes
