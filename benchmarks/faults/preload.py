"""Modules that the fork server imports once, so that child processes start quickly.

Only imports: threads started before a fork do not run in the child process.
"""

from importlib import import_module

from numba.core.registry import cpu_target

LIBRARIES = (
    *("matplotlib.backends.backend_agg", "matplotlib.figure", "obstore", "PIL.Image", "rasterio"),
    *("pyogrio", "rich.progress", "torch.utils.tensorboard", "zarr", "zarrs"),
    "torch._dynamo",  # the first optimizer imports it
)
PROJECT = (
    *("geoprep.building.run", "geoprep.cli.commands", "geoprep.verify", "geoprep.views.page"),
    *("geoprep.views.overview", "loaders.tiles.stream", "training.fit", "training.run.start"),
    *("training.predict", "training.prediction.job", "training.prediction.screen"),
)

for name in (*LIBRARIES, *PROJECT):
    import_module(name)
# Imports that numba makes at the first call of a compiled function.
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
