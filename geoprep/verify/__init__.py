"""Whether a store is what its build wrote: a store in, a report of every damaged byte out.

Face: :func:`verify`, :func:`print_report`, :class:`VerifyReport`.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
