"""A lean trainer: stores in, models out, predictions of new imagery from them.

>>> from training import load_model, train
>>> run = train("moscow.zarr", epochs=6, out="runs/moscow")  # doctest: +SKIP
>>> load_model(run.best).predict("scene.tif", out="predictions/")  # doctest: +SKIP
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
