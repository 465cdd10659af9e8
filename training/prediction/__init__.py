"""From image to map: a GeoTIFF and a `runner.Runner` in, a GeoTIFF of roads and speeds out.

`options` says what can be asked for. `job` has many images, `mapping` one: `images` and `windows`
give rows of windows, a runner of `runner` their probabilities, `blend` the bytes of the map, `cog`
the file; `product` and `overlay` say what is in it and how it looks.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
