"""Builds: scenes and options to a plan, and a plan and an executor to a finished store.

Interrupted builds are resumed.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
