"""Runs of training for notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from geoprep.errors import GeoprepError
from training.model_functions import Model, load_model, paths_of

if TYPE_CHECKING:
    import pandas as pd

    from training.run.trainer import Trainer


class TrainedRun:
    """A finished run of `train`: its folder, metrics and best model.

    Parameters
    ----------
    folder
        Folder of the run.

    Attributes
    ----------
    folder
        As above.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def best(self) -> Path:
        """Checkpoint with the best validation score."""
        from training.checkpoint import BEST

        return self.folder / BEST

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per epoch: losses, learning rate and validation metrics."""
        import pandas as pd

        return pd.read_csv(self.folder / "metrics.csv")

    def model(self, **options: Any) -> Model:  # noqa: ANN401 - options of many types
        """Return the model of the best checkpoint; options as for `load_model`."""
        return load_model(self.best, **options)

    def __repr__(self) -> str:
        return f"<training.TrainedRun {self.folder}>"


def train(
    store: Any,  # noqa: ANN401 - stores or paths
    *,
    trainer: type[Trainer] | None = None,
    progress: bool = True,
    **settings: Any,  # noqa: ANN401 - settings of many types
) -> TrainedRun:
    """Train a model, as ``geoprep fit`` does.

    Parameters
    ----------
    store
        A `geoprep.Store`, a path or an address; or several.
    trainer
        Class of the trainer, derived from `training.run.trainer.Trainer`, with a loss, a schedule
        or metrics of its own. None: `training.run.trainer.Trainer`.
    progress
        Whether to show a progress bar.
    settings
        Settings of ``geoprep fit`` by name, such as ``epochs=6, out="runs/moscow"``.

    Raises
    ------
    GeoprepError
        A setting is invalid, a store cannot be used, or the training failed.
    """
    from training.fit import COMMAND
    from training.run.start import run_folder, start_run
    from training.run.trainer import Trainer

    given = COMMAND.parse_values({"stores": paths_of(store), **settings, "quiet": not progress})
    status = start_run(given, trainer=trainer or Trainer)
    return _finished(run_folder(given), status)


def _finished(folder: Path, status: int) -> TrainedRun:
    """Return the run in a folder; raise GeoprepError if its exit status is not 0."""
    if status:
        raise GeoprepError(f"{folder}: the training was stopped. Resume it by `resume` {folder}")
    return TrainedRun(folder)
