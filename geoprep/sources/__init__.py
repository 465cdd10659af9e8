"""Where scenes come from: a folder, an archive, a bucket or file patterns in, scenes out.

Face: :class:`Scene` and :class:`Found`; :func:`find_scenes` for SpaceNet's cities,
:func:`images_and_labels` for any other imagery, :func:`fetch` to bring them to the local disk.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
