"""Carry out a plan: a plan and an executor in, a finished store and a summary out.

Face: :func:`build`, :class:`Summary`; :func:`rehearse` says beforehand what
a build would take. Interrupted builds are taken up where they were.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
