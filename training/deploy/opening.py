"""Any trained network, by what its file is: a checkpoint, or an exported one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from geoprep.errors import UsageError
from training.checkpoint import BEST, CheckpointError, Facts, Weights
from training.deploy import ipex_file, onnx_file, openvino_file, torch_file
from training.deploy.record import Record
from training.engine.native import DeviceName
from training.prediction.runner import Compile, Precision, Runner, open_runner

SUFFIXES = (torch_file.SUFFIX, onnx_file.SUFFIX, openvino_file.SUFFIX, ipex_file.SUFFIX)


def load_runner(path: str | Path, *, compile_mode: Compile = "auto") -> tuple[Runner, Record]:
    """Return the runner of an exported network and what it is.

    Parameters
    ----------
    path
        A file with one of `SUFFIXES`.
    compile_mode
        See `training.prediction.runner.ModuleRunner`; for ``.pt2`` and ``.xml`` files.

    Raises
    ------
    UsageError
        The file is of no kind that is known, or what runs it is not installed.
    CheckpointError
        It is missing or damaged.
    """
    path = Path(path)
    kinds: dict[str, Callable[[], tuple[Runner, Record]]] = {
        torch_file.SUFFIX: lambda: torch_file.read(path, compile_mode),
        onnx_file.SUFFIX: lambda: onnx_file.read(path),
        openvino_file.SUFFIX: lambda: openvino_file.read(path, compile_mode),
        ipex_file.SUFFIX: lambda: ipex_file.read(path),
    }
    if path.suffix not in kinds:
        raise UsageError(f"{path} is no exported network: they end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; python -m training.export makes one")
    return kinds[path.suffix]()


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

    The arguments are those of `training.prediction.runner.open_runner`.

    Raises
    ------
    UsageError
        An option is for checkpoints, or as `open_runner` and `load_runner` say.
    CheckpointError
        The file cannot be used.
    """
    if path.suffix == ".bin" and path.with_suffix(openvino_file.SUFFIX).exists():
        raise UsageError(f"{path} holds weights alone: name {path.with_suffix('.xml')} beside it")
    if path.suffix not in SUFFIXES:
        return open_runner(
            path,
            device=device,
            precision=precision,
            compile_mode=compile_mode,
            weights=weights,
            model=model,
        )
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
