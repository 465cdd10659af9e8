"""Runs the tasks of a build: `Threads` of this process, or the workers of a `Dask` cluster."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
