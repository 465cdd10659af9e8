"""A run: its start, state, loop and steps, and what is shown of it."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
