"""Execution of a plan: a plan and an executor in, a finished store and a summary out.

Interrupted builds are resumed. `dry_run` estimates a build without running it.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
