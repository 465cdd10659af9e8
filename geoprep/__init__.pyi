from .api.cities import Download as Download
from .api.cities import download as download
from .api.cities import list_cities as list_cities
from .api.cities import synthesize as synthesize
from .api.comparing import compare as compare
from .api.networks import RoadNetwork as RoadNetwork
from .api.networks import read_network as read_network
from .api.road_functions import polygonize as polygonize
from .api.road_functions import score as score
from .api.store_functions import check_store as check_store
from .api.store_functions import export_footprints as export_footprints
from .api.store_functions import export_scenes as export_scenes
from .api.store_functions import preview as preview
from .api.store_functions import store_info as store_info
from .api.vectorizing import vectorize as vectorize
from .api.vectorizing import write_road_table as write_road_table
from .building.building import build_zarr as build_zarr
from .roads.comparison.changes import RoadChanges as RoadChanges
from .views.stores import Store as Store
from .views.stores import open_store as open_store

__version__: str
