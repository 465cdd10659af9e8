from .cluster import Dask as Dask
from .progress import counting_bar as counting_bar
from .progress import progress_bar as progress_bar
from .terminal import Terminal as Terminal
from .threads import Executor as Executor
from .threads import Survives as Survives
from .threads import Threads as Threads
from .threads import stopped as stopped
