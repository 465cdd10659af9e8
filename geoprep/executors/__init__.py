"""Who runs the tasks of a build: a function and its arguments in, results as they finish out.

Face: :class:`Executor`, what every one of them offers; :class:`Threads`; :func:`usable_cores`.
"""

from geoprep.executors.threads import Executor, Threads, usable_cores

__all__ = ["Executor", "Threads", "usable_cores"]
