"""Trained models for notebooks: load, call, predict, evaluate, export, save."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loaders
from geoprep.errors import GeoprepError, UsageError
from geoprep.options import checked_values, settings_of
from geoprep.outputs import check_outputs
from geoprep.storage.local_files import make_folder
from training.engine.distributed import process_group
from training.prediction.job import open_job
from training.prediction.predict_options import PredictOptions
from training.prediction.screen import Screen
from training.runners.model_files import model_file, open_model
from training.runners.model_options import CheckpointOptions, ModelOptions
from training.runners.runner import average_views, pad_image

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from geoprep.storage.local_files import StrPath
    from training.checkpoint import ModelInfo
    from training.cli import Command
    from training.runners.runner import Runner


def paths_of(given: Any) -> list[str]:  # noqa: ANN401 - stores or paths
    """Return the path or address of one thing, or of several."""
    several = [given] if isinstance(given, str | os.PathLike) else given
    return [os.fspath(path) for path in several]


class Model:
    """A trained model: call it on uint8 images, or predict files with it.

    Parameters
    ----------
    path
        Checkpoint or exported file.
    runner, info
        The opened model and the record of its training.
    options
        Options of `load_model` that it was opened with, which hold for `predict`,
        `evaluate_model` and `export_model` too unless they are given there.

    Attributes
    ----------
    path, info
        As above. ``info`` has the bands, the pixel size in metres and the channels.
    """

    def __init__(
        self, path: Path, runner: Runner, info: ModelInfo, options: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.info = info
        self._runner = runner
        self._options = dict(options or {})

    def __call__(self, image: NDArray[np.uint8] | Tensor) -> NDArray[np.float32]:
        """Return probabilities.

        Parameters
        ----------
        image
            uint8 (n, band, y, x) or (band, y, x), with the bands of ``info`` and values as in the
            store: with ``info.rescale`` ``scene`` those of an image are stretched between its
            percentiles, as `predict` does. Sides are padded to multiples of 32 by reflection.

        Returns
        -------
        float32 (n, channel, y, x) or (channel, y, x)
            Probabilities 0..1.

        Raises
        ------
        UsageError
            The dtype, the number of axes or the number of bands is another one.
        """
        import numpy as np
        import torch

        if isinstance(image, np.ndarray):  # torch has no negative strides
            image = np.ascontiguousarray(image)
        pixels = torch.as_tensor(image)
        single = pixels.ndim == 3
        pixels = pixels[None] if single else pixels
        bands = len(self.info.bands)
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != bands:
            shape = " x ".join(map(str, pixels.shape))
            raise UsageError(
                "image",
                f"is {pixels.dtype} of {shape}: give uint8 (n, {bands}, y, x), bands "
                f"{', '.join(self.info.bands)}",
            )
        height, width = pixels.shape[2:]
        with torch.inference_mode():
            views = self._options.get("tta", "none")
            output = average_views(self._runner, pad_image(pixels), views)
        output = output[:, :height, :width].permute(0, 3, 1, 2)
        probabilities: NDArray[np.float32] = output.float().cpu().numpy()
        return probabilities[0] if single else probabilities

    def predict(
        self,
        images: StrPath | Sequence[StrPath],
        out: StrPath,
        *,
        progress: bool = True,
        **options: Any,  # noqa: ANN401 - options of many types
    ) -> list[Path]:
        """Predict images and return the files of the predictions.

        Parameters
        ----------
        images
            GeoTIFFs, folders or patterns, also on S3; or STAC items.
        out
            Folder for the predictions, one NAME.tif per image.
        progress
            Whether to show a progress bar and a line per image.
        options
            Options of ``geoprep predict`` by name, such as ``overlay=True``.

        Raises
        ------
        UsageError
            An option is invalid.
        GeoprepError
            An image could not be predicted; the others were.

        Examples
        --------
        >>> import training
        >>> model = training.load_model("runs/moscow", device="cpu")
        >>> (prediction,) = model.predict("scene.tif", out="predictions", progress=False)
        >>> prediction.name
        'scene.tif'
        """
        from training.predict import COMMAND

        _refuse(options, {"instances", "polygons", "square", "min_area", "simplify"}, COMMAND)
        values = COMMAND.parse_values(
            {
                "checkpoint": os.fspath(self.path),
                "images": paths_of(images),
                "out": os.fspath(out),
                "quiet": not progress,
                **self._options,
                **options,
            }
        )
        given = PredictOptions(**values)
        job, _ = open_job(given)
        with Screen(quiet=given.quiet) as screen:
            outcomes = job.run(screen)
        failed = [f"{outcome.address}: {outcome.error}" for outcome in outcomes if outcome.error]
        if failed:
            raise GeoprepError("; ".join(failed))
        return [outcome.target for outcome in outcomes]

    def __repr__(self) -> str:
        info, (x, y) = self.info, self.info.gsd_m
        return (
            f"<training.Model {info.model} of {self.path}: bands {', '.join(info.bands)}, "
            f"{x:.3g} x {y:.3g} m, {self._runner.description}>"
        )


def _refuse(options: Mapping[str, Any], names: Set[str], command: Command) -> None:
    """Refuse options that only the command has."""
    for name in options.keys() & names:
        raise UsageError(name, f"is an option of geoprep {command.name} only: leave it out")


def load_model(path: StrPath, **options: Any) -> Model:  # noqa: ANN401 - options of many types
    """Return the model of a checkpoint, a run's folder (its best.pt), or an exported file.

    Parameters
    ----------
    path
        The file or folder.
    options
        Options of ``geoprep predict`` for models: ``device``, ``precision``,
        ``model``, ``tta``.

    Raises
    ------
    UsageError
        An option is invalid, or the file needs a library that is not installed.
    CheckpointError
        The file is missing or damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import training
    >>> model = training.load_model("runs/moscow", device="cpu")
    >>> model.info.bands
    ('red', 'green', 'blue')
    >>> model(np.zeros((3, 64, 96), np.uint8)).shape  # seven bins of speed, and any road
    (8, 64, 96)
    """
    given = {"checkpoint": os.fspath(path), **options}
    values = checked_values(settings_of(ModelOptions), given)
    runner, info = open_model(ModelOptions(**values))
    return Model(model_file(Path(path)), runner, info, options)


def save_model(
    model: nn.Module,
    path: StrPath,
    *,
    store: Any,  # noqa: ANN401 - stores or paths
    targets: str = "auto",
    factory: str | None = None,
    level: int | None = None,
    bands: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model that your own loop trained as a checkpoint, and return its path.

    `load_model`, `evaluate_model`, `export_model` and the commands of ``training`` open the file.
    Bands, normalisation, classes, speeds and pixel size come from the store: train on images
    that `loaders.DevicePrep.from_store` normalised for the same store, targets and bands.

    Parameters
    ----------
    model
        The trained module: normalised images, float (n, band, y, x), to logits (n, channel, y, x);
        of a sigmoid, or of a softmax for classes. It may be compiled or wrapped for DDP.
    path
        File to write, such as ``model.pt``.
    store
        The training data: a `geoprep.Store`, a path or an address; or several.
    targets
        ``bins``, ``binary`` or ``classes``, as in `loaders.DevicePrep`;
        ``auto``: as ``geoprep fit`` chooses them for the store.
    factory
        What builds the model again: ``smp:ARCHITECTURE:ENCODER``, or ``package.module:factory``,
        called with ``bands`` and ``channels``, which `load_model` then needs as ``model``. None:
        the built-in model.
    level
        Tile side in pixels of the level it was trained on. None: the finest.
    bands
        Names of the bands it was trained on, in order (also ``red,green``). None: all of the store.
    overwrite
        Replace files that exist.

    Raises
    ------
    UsageError
        The factory is missing or builds another model, or the store lacks a level, a band, or
        labels for the targets.
    StoreError
        A store cannot be opened.
    CheckpointError
        The file cannot be written.
    """
    import torch

    from training.checkpoint import Checkpoint, save
    from training.data import level_gsd, model_info
    from training.fit import COMMAND
    from training.model.build import build_model, factory_of, unwrapped

    make_folder(Path(path).parent)
    check_outputs(path, overwrite=overwrite)
    trained, stores = unwrapped(model), loaders.open_stores(paths_of(store))
    given = {"model": factory or factory_of(trained), "targets": targets}
    given |= (
        {} if bands is None else {"bands": bands if isinstance(bands, str) else ",".join(bands)}
    )
    info = model_info(stores, **COMMAND.parse_values(given))
    chosen = stores[0].check_level(level)
    info = replace(info, level=chosen, gsd_m=level_gsd(stores[0], chosen))
    weights = dict(trained.state_dict())
    with torch.random.fork_rng(devices=()):  # the loop draws the same numbers afterwards
        built = build_model(info.model, bands=len(info.bands), channels=info.channels)
    try:
        built.load_state_dict(weights)
    except RuntimeError as error:
        difference = " ".join(str(error).splitlines()[1:2]).strip()
        raise UsageError(
            f"{info.model}, called with bands={len(info.bands)}, channels={info.channels} (targets "
            f"{info.targets}), builds another model ({difference}): check `factory`, `targets` and "
            "`bands`"
        ) from error
    save(Path(path), Checkpoint(info=info, model=weights))
    return Path(path)


def _opened_with(model: Model | StrPath, command: type[CheckpointOptions]) -> dict[str, Any]:
    """Return the path of a model, and the options it was opened with that a command has too."""
    if not isinstance(model, Model):
        return {"checkpoint": os.fspath(model)}
    known = {item.name for item in fields(command)}
    given = {name: value for name, value in model._options.items() if name in known}
    return {"checkpoint": os.fspath(model.path), **given}


def evaluate_model(
    model: Model | StrPath,
    store: Any,  # noqa: ANN401 - stores or paths
    /,
    *,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - options of many types
) -> dict[str, Any]:
    """Return the metrics of a model on the tiles of stores, as ``geoprep evaluate --json``.

    Parameters
    ----------
    model
        A model, a checkpoint, a run's folder, or an exported file.
    store
        A `geoprep.Store`, a path or an address; or several.
    progress
        Whether to show a progress bar.
    options
        Options of ``geoprep evaluate`` by name, such as ``split="test"``, without those
        of tables.

    Raises
    ------
    GeoprepError
        An option is invalid, or a file cannot be used.

    Examples
    --------
    >>> import training
    >>> document = training.evaluate_model("runs/moscow", "moscow.zarr", progress=False)
    >>> document["split"]
    'val'
    >>> 0 <= document["metrics"]["road_iou"] <= 1
    True
    """
    from training import evaluate

    files = (item.name for item in fields(evaluate.EvaluateOutput))
    _refuse(options, {"compare", "on", *files}, evaluate.COMMAND)
    given = {**_opened_with(model, evaluate.EvaluateOptions), "stores": paths_of(store)}
    values = evaluate.COMMAND.parse_values({**given, **options, "quiet": not progress})
    settings = evaluate.EvaluateOptions(**values)
    with process_group(settings.device_kind):
        return evaluate.evaluation_document(evaluate.evaluated(settings), settings)


def export_model(
    model: Model | StrPath,
    out: StrPath,
    /,
    **options: Any,  # noqa: ANN401 - options of many types
) -> Path:
    """Write the model of a checkpoint as a model file and return its path.

    Parameters
    ----------
    model
        A model, a checkpoint, or a run's folder.
    out
        File to write: .pt2, .onnx, .xml (OpenVINO) or .ipex.
    options
        Options of ``geoprep export-model`` by name, such as ``format="onnx"``.

    Raises
    ------
    GeoprepError
        An option is invalid, or the model cannot be exported.

    Examples
    --------
    >>> import training
    >>> file = training.export_model("runs/moscow", "moscow.pt2", format="fp32")
    exporting ... of runs/moscow/best.pt in float32
    ...
    done in ... s
    >>> training.load_model(file).info.bands
    ('red', 'green', 'blue')
    """
    from training.export import COMMAND, ExportOptions, export

    given = {**_opened_with(model, ExportOptions), "out": os.fspath(out)}
    export(ExportOptions(**COMMAND.parse_values({**given, **options})))
    return Path(out)
