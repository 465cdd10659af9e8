"""How a step is carried out: a network and a machine in; precision, layout, compiler out."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
