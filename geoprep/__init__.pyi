from .api import Store as Store
from .api import open_store as open_store

__version__: str
