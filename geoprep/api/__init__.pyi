from .stores import Store as Store
from .stores import open_store as open_store
