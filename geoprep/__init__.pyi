from .api import Download as Download
from .api import RoadNetwork as RoadNetwork
from .api import check_store as check_store
from .api import compare as compare
from .api import download as download
from .api import export_footprints as export_footprints
from .api import export_geozarr as export_geozarr
from .api import export_scenes as export_scenes
from .api import export_stac as export_stac
from .api import list_cities as list_cities
from .api import polygonize as polygonize
from .api import preview as preview
from .api import read_network as read_network
from .api import score as score
from .api import store_info as store_info
from .api import synthesize as synthesize
from .api import vectorize as vectorize
from .api import write_road_table as write_road_table
from .building import build_zarr as build_zarr
from .roads import RoadChanges as RoadChanges
from .views import Store as Store
from .views import open_store as open_store

__version__: str
