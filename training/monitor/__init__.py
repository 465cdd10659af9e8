"""What a person sees of a run: losses and metrics in; lines, files and pictures out."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
