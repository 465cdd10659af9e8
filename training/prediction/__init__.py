"""Images to predictions: a GeoTIFF and a runner in, a GeoTIFF of road probabilities and speeds out.

`predict_options` has the options. `job` predicts many images, `instances` in several processes.
`predictor` predicts one: `images` says how it is read, `windows` where the windows lie,
`window_rows` reads them, `blend` joins their probabilities, `cog` writes the file, with the tags of
`prediction_tags`. `overlay` writes a picture and a QGIS style, `screen` shows progress.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
