"""What the server of children imports once, so that each of them costs a fraction of a second.

Imports alone: whoever forks a process that has worked gets threads that do not run.
"""

from importlib import import_module

LIBRARIES = (
    *("matplotlib.backends.backend_agg", "matplotlib.figure", "obstore", "PIL.Image", "rasterio"),
    *("rich.progress", "torch.utils.tensorboard", "zarr", "zarrs"),
)
OURS = (
    *("geoprep.build.run", "geoprep.cli.commands", "geoprep.verify", "geoprep.views.page"),
    *("geoprep.views.preview", "loaders.stream", "training.fit", "training.predict"),
)

for name in (*LIBRARIES, *OURS):
    import_module(name)
