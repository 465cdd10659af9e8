"""Open and write trained models: checkpoints and model files of every format."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError
from training.checkpoint import BEST, CheckpointError, ModelInfo, load_model
from training.engine.native import DeviceName, choose_device
from training.runners import deepness_file, ipex_file, onnx_file, openvino_file, torch_file
from training.runners.export_record import ExportRecord
from training.runners.model_options import ModelOptions, parse_devices
from training.runners.runner import Compile, NativeRunner, Runner

# A format is a module with the functions `write` and `read`.
_FORMATS = {".pt2": torch_file, ".onnx": onnx_file, ".xml": openvino_file, ".ipex": ipex_file}
SUFFIXES = tuple(_FORMATS)


def open_model(options: ModelOptions, compile_mode: Compile = "off") -> tuple[Runner, ModelInfo]:
    """Return the runner of a checkpoint or model file, and its `ModelInfo`.

    Raises
    ------
    UsageError
        An option does not apply to the file, or a library or device that it needs is not there.
    CheckpointError
        The file is missing or damaged.
    """
    path = model_file(options.checkpoint)
    if len(devices := parse_devices(options.device)) > 1:
        raise UsageError(
            "device",
            f"{options.device} names {len(devices)} devices: only the command "
            "training.predict uses several",
        )
    if path.suffix == ".bin" and path.with_suffix(".xml").exists():
        raise UsageError(f"{path} holds the weights only: name {path.with_suffix('.xml')} instead")
    runner: Runner
    if path.suffix in SUFFIXES:
        for name in ("precision", "model"):
            if (value := getattr(options, name)) not in (None, "auto"):
                raise UsageError(
                    name,
                    f"{value} applies to checkpoints only: {path} was exported with its "
                    "own weights and precision. Leave it out",
                )
        on_cuda = path.suffix == ".onnx"
        if options.device_kind not in ("auto", "cpu", "cuda" if on_cuda else "cpu"):
            fix = "cpu or cuda" if on_cuda else "cpu, or a checkpoint or .onnx file"
            raise UsageError(
                "device", f"{options.device}: {path} does not compute on it. Use {fix}"
            )
        runner, record = load_runner(path, device=options.device)
        info = record.info
    else:
        device = chosen_device(options.device)  # first: the checkpoint is read onto it
        if device.index is not None:  # pinned memory needs no context on the first device then
            torch.accelerator.set_device_index(device)
        model, info = load_model(path, device=device, model=options.model)
        runner = NativeRunner(model, info, device=device, precision=options.precision)
    runner.compile_mode = compile_mode
    return runner, info


def chosen_device(text: str) -> torch.device:
    """Return the device of text such as ``cuda:1``; ``auto`` is an accelerator if there is one."""
    name, _, number = text.partition(":")
    device = choose_device(cast(DeviceName, name))
    if not number:
        return device
    count = torch.get_device_module(device).device_count()
    if int(number) >= count:
        raise UsageError("device", f"{text}: this machine has {count}, counted from {name}:0")
    return torch.device(text)


def write_model(
    path: Path,
    model: nn.Module,
    record: ExportRecord,
    tiles: Sequence[Tensor],
    program: Literal["geoprep", "deepness"] = "geoprep",
) -> None:
    """Write a model file in the format of the path's suffix, see `torch_file.write`.

    ``program`` is the library that runs it: this package and others, or the plugin of QGIS.
    """
    with _silenced():
        if program == "deepness":
            deepness_file.write(path, model, record.info)
            return
        _FORMATS[path.suffix].write(path, model, record, tiles)


def load_runner(path: str | Path, *, device: str = "cpu") -> tuple[Runner, ExportRecord]:
    """Return the runner of a model file and its record; only ``.onnx`` files use CUDA."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path} is not a model file: their names end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file. geoprep export-model writes model files")
    with _silenced():
        place = device if device.startswith("cuda") else "cpu"
        loaded: tuple[Runner, ExportRecord] = _FORMATS[path.suffix].read(path, place)
    return loaded


def model_file(path: Path) -> Path:
    """Return the file of a trained model: of a run's folder its best one."""
    return path / BEST if path.is_dir() else path


def export_files(path: Path) -> list[Path]:
    """Return the files of a model file: itself, and for OpenVINO the one with its weights."""
    return [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress what libraries say about their internals, unless Python is asked for warnings."""
    if sys.warnoptions:
        yield
        return
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
