"""Every choice of a build, before a pixel is read: scenes and options in, tiles and shards out.

Face: :class:`BuildOptions`, :func:`make_plan`, :class:`Plan`, :func:`parse_rescale`. What reads
images is loaded on first use: the options alone are what a help text needs.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
