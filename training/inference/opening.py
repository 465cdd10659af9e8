"""Any trained network, by what its file is: a checkpoint, or an exported one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from geoprep.errors import UsageError
from training.checkpoint import BEST, CheckpointError
from training.inference import ipex_file, onnx_file, openvino_file, torch_file
from training.inference.record import Record
from training.inference.runner import Compile, Runner

# A format is a module that has `read` and `write`.
_FORMATS = {".pt2": torch_file, ".onnx": onnx_file, ".xml": openvino_file, ".ipex": ipex_file}
SUFFIXES = tuple(_FORMATS)


def write_network(path: Path, network: nn.Module, record: Record, tiles: Sequence[Tensor]) -> None:
    """Write a network in the format that the file's name says, see `torch_file.write`."""
    _FORMATS[path.suffix].write(path, network, record, tiles)


def load_runner(path: str | Path, *, compile_mode: Compile = "auto") -> tuple[Runner, Record]:
    """Return the runner of an exported network and what it is.

    Parameters
    ----------
    path
        A file with one of `SUFFIXES`.
    compile_mode
        See `training.inference.runner.Runner`; for ``.pt2`` and ``.xml`` files.

    Raises
    ------
    UsageError
        The file is of no kind that is known, or what runs it is not installed.
    CheckpointError
        It is missing or damaged.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path} is no exported network: they end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; python -m training.export makes one")
    runner: Runner
    runner, record = _FORMATS[path.suffix].read(path)
    runner.compile_mode = compile_mode
    return runner, record


def network_file(path: Path) -> Path:
    """Return the file that a person means: of a run's folder its best checkpoint."""
    return path / BEST if path.is_dir() else path
