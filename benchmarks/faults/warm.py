"""What the server of children imports once, so that each of them costs a fraction of a second.

Imports alone: whoever forks a process that has worked gets threads that do not run.
"""

from importlib import import_module

from numba.core.registry import cpu_target

LIBRARIES = (
    *("matplotlib.backends.backend_agg", "matplotlib.figure", "obstore", "PIL.Image", "rasterio"),
    *("pyogrio", "rich.progress", "torch.utils.tensorboard", "zarr", "zarrs"),
    "torch._dynamo",  # the first optimizer imports it
)
OURS = (
    *("geoprep.building.run", "geoprep.cli.commands", "geoprep.verify", "geoprep.views.page"),
    *("geoprep.views.overview", "loaders.stream", "training.fit", "training.start"),
    *("training.predict", "training.prediction.job", "training.prediction.screen"),
)

for name in (*LIBRARIES, *OURS):
    import_module(name)
# What numba imports when a function of its own is first called.
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
