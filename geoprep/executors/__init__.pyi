from .cluster import Dask as Dask
from .threads import Executor as Executor
from .threads import Survives as Survives
from .threads import Threads as Threads
from .threads import stopped as stopped
