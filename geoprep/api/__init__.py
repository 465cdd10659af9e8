"""The public functions of geoprep, and the objects that they return.

``import geoprep as gp`` offers the same names. Each command of the command line has its function.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
