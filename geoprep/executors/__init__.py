"""Who runs the tasks of a build: a function and its arguments in, results as they finish out.

Face: :class:`Executor`, what every one of them offers; :class:`Threads`; :class:`Dask`;
:func:`stopped`.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
