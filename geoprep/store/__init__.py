"""The contract: shards and tables in, a store that any Zarr reader opens out.

Face: what is in a store, how it is opened, and where the bytes of its pixels lie
(:mod:`geoprep.store.layout`). :mod:`geoprep.store.writer` makes a store,
:mod:`geoprep.store.shards` writes its pixels, :mod:`geoprep.store.scenes` puts scenes together.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
