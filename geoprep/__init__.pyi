from .api import RoadNetwork as RoadNetwork
from .api import Store as Store
from .api import open_store as open_store
from .api import read_network as read_network
from .api import route as route
from .api import score as score
from .api import vectorize as vectorize

__version__: str
