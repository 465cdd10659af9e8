"""Checks of a store: a store in, a report of every damaged byte out."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
