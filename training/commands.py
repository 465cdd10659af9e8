"""The commands of this package that ``geoprep --help`` lists (entry points in pyproject.toml)."""

from geoprep.cli.entry_points import LazyCommand

fit = LazyCommand("fit", "training.fit", "Train a model on stores.")
evaluate = LazyCommand("evaluate", "training.evaluate", "Evaluate a model on the tiles of stores.")
predict = LazyCommand("predict", "training.predict", "Predict roads or classes of images.")
export_model = LazyCommand(
    "export-model", "training.export", "Write a model to a file that runs without this package."
)
