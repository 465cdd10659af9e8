"""Who runs the tasks of a build: a function and its arguments in, results as they finish out.

Face: :class:`Executor`, what every one of them offers; :class:`Threads`; :class:`Dask`;
:func:`stopped`; :func:`usable_cores`.
"""

from geoprep.executors.cluster import Dask
from geoprep.executors.threads import Executor, Threads, stopped, usable_cores

__all__ = ["Dask", "Executor", "Threads", "stopped", "usable_cores"]
