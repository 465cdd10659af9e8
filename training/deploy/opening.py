"""Any trained network, by what its file is: a checkpoint, or an exported one."""

from __future__ import annotations

from pathlib import Path

from geoprep.errors import UsageError
from training.checkpoint import BEST, CheckpointError, Facts, Weights, load_network
from training.deploy import ipex_file, onnx_file, openvino_file, torch_file
from training.deploy.record import Record
from training.engine.native import DeviceName, choose_device
from training.prediction.runner import Compile, NativeRunner, Precision, Runner

READERS = {
    ".pt2": torch_file.read,
    ".onnx": onnx_file.read,
    ".xml": openvino_file.read,
    ".ipex": ipex_file.read,
}
WRITERS = {
    ".pt2": torch_file.write,
    ".onnx": onnx_file.write,
    ".xml": openvino_file.write,
    ".ipex": ipex_file.write,
}
SUFFIXES = tuple(READERS)


def load_runner(path: str | Path, *, compile_mode: Compile = "auto") -> tuple[Runner, Record]:
    """Return the runner of an exported network and what it is.

    Parameters
    ----------
    path
        A file with one of `SUFFIXES`.
    compile_mode
        See `training.prediction.runner.Runner`; for ``.pt2`` and ``.xml`` files.

    Raises
    ------
    UsageError
        The file is of no kind that is known, or what runs it is not installed.
    CheckpointError
        It is missing or damaged.
    """
    path = Path(path)
    if path.suffix not in READERS:
        raise UsageError(f"{path} is no exported network: they end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; python -m training.export makes one")
    runner, record = READERS[path.suffix](path)
    runner.compile_mode = compile_mode
    return runner, record


def open_network(
    path: Path,
    *,
    device: DeviceName = "auto",
    precision: Precision = "auto",
    compile_mode: Compile = "off",
    weights: Weights = "auto",
    model: str | None = None,
) -> tuple[Runner, Facts]:
    """Return the runner of a checkpoint or of an exported network, and what it is for.

    Parameters
    ----------
    path
        A checkpoint, the folder of a run (then its best one), or an exported network.
    device, precision
        See `training.prediction.runner.NativeRunner`; for checkpoints.
    compile_mode
        See `training.prediction.runner.Runner`.
    weights, model
        See `training.checkpoint.load_network`; for checkpoints.

    Raises
    ------
    UsageError
        There is no such device, the checkpoint names code that ``model`` does not, an option is for
        checkpoints, or as `load_runner` says.
    CheckpointError
        The file cannot be used.
    """
    if path.suffix == ".bin" and path.with_suffix(".xml").exists():
        raise UsageError(f"{path} holds weights alone: name {path.with_suffix('.xml')} beside it")
    if path.suffix not in SUFFIXES:
        place = choose_device(device)  # before the checkpoint, which is read onto it
        network, facts = load_network(path, device=place, weights=weights, model=model)
        native = NativeRunner(network, facts, device=place, precision=precision)
        native.compile_mode = compile_mode
        return native, facts
    said = {
        "--device": device if device not in ("auto", "cpu") else None,
        "--precision": precision if precision != "auto" else None,
        "--weights": weights if weights != "auto" else None,
        "--model": model,
    }
    for flag, value in said.items():
        if value is not None:
            raise UsageError(
                f"{flag} {value} is for checkpoints: {path} was exported as it is, for the cpu"
            )
    runner, record = load_runner(path, compile_mode=compile_mode)
    return runner, record.facts


def network_file(path: Path) -> Path:
    """Return the file that a person means: of a run's folder its best checkpoint."""
    return path / BEST if path.is_dir() else path
