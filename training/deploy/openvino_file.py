"""OpenVINO's `.xml` with its `.bin` beside it; INT8 by NNCF."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from geoprep.storage import replaced
from training.checkpoint import CheckpointError
from training.deploy.graph import quiet
from training.deploy.onnx_file import model_of, nodes_of
from training.deploy.record import KEY, Record, needed
from training.prediction.runner import Runner

SUFFIX = ".xml"
_WHAT = "OpenVINO's format"
_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "bf16"}
"""What its plugin computes in where nothing is quantised; it takes fp32 where bf16 is not there."""


class OpenvinoRunner:
    """A model that OpenVINO has compiled for the CPU, once per shape of batch.

    Parameters
    ----------
    model
        ``openvino.Model``.
    precision
        Of the convolutions.
    """

    fixed_batch = False
    device = torch.device("cpu")

    def __init__(self, model: Any, precision: str) -> None:  # noqa: ANN401 - it has no types
        self._core = needed("openvino", _WHAT).Core()
        self._precision = precision
        self._compiled = self._core.compile_model(
            model,
            "CPU",
            {
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "INFERENCE_PRECISION_HINT": _HINTS[precision],
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": False,
            },
        )

    @property
    def identity(self) -> dict[str, object]:
        """See `Runner`."""
        return {"precision": self._precision, "compiled": False}

    @property
    def description(self) -> str:
        """See `Runner`."""
        return f"{self._precision} on cpu, OpenVINO"

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        del pixels
        return self, ""

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        return torch.from_numpy(self._compiled(np.ascontiguousarray(image.numpy()))[0])


def write(path: Path, network: nn.Module, record: Record, tiles: Sequence[Tensor]) -> Record:
    """Write two files; the arguments are those of `training.deploy.torch_file.write`.

    The weights come first: until the new ``.xml`` is there, the old one does not fit them and says
    so.

    Raises
    ------
    UsageError
        A package is missing.
    """
    openvino = needed("openvino", _WHAT)
    onnx = needed("onnx", _WHAT)
    with TemporaryDirectory(dir=path.parent, prefix=".openvino-") as folder, quiet():
        source, made = Path(folder) / "model.onnx", Path(folder) / "model.xml"
        proto = model_of(network, record)
        onnx.save(proto, str(source))
        model = openvino.Core().read_model(str(source))
        if record.precision == "int8":
            model = _quantised(model, tiles, nodes_of(proto, record.kept))
        record = _save(openvino, model, record, made)
        for old, new in ((made.with_suffix(".bin"), _weights(path)), (made, path)):
            with replaced(new) as partial:
                shutil.copyfile(old, partial)
    return record


def read(path: Path) -> tuple[OpenvinoRunner, Record]:
    """Return the runner of a file and what it is.

    Raises
    ------
    UsageError
        OpenVINO is not installed.
    CheckpointError
        The file is damaged or not one of `write`, or its weights are those of another.
    """
    openvino = needed("openvino", _WHAT)
    weights = _weights(path)
    if not weights.is_file():
        raise CheckpointError(f"{weights} is missing: it holds the weights of {path}")
    try:
        model = openvino.Core().read_model(str(path), str(weights))
    except Exception as error:  # of several kinds without a common base
        raise CheckpointError(f"{path} is damaged or not OpenVINO's: export it again") from error
    text = model.get_rt_info([KEY]).astype(str) if model.has_rt_info([KEY]) else None
    record = Record.from_json(text, path)
    if _digest(weights) != record.weights:
        raise CheckpointError(f"{weights} is damaged or not of {path}: export it again")
    return OpenvinoRunner(model, record.precision), record


def _save(openvino: Any, model: Any, record: Record, path: Path) -> Record:  # noqa: ANN401
    """Save a model and the record of it, which holds the hash of the weights."""
    from dataclasses import replace

    halves = record.precision != "float32"
    openvino.save_model(model, str(path), compress_to_fp16=halves)
    record = replace(record, weights=_digest(path.with_suffix(".bin")))
    model.set_rt_info(record.to_json(), [KEY])
    openvino.save_model(model, str(path), compress_to_fp16=halves)
    return record


def _quantised(model: Any, tiles: Sequence[Tensor], kept: Sequence[str]) -> Any:  # noqa: ANN401
    """Return a model in INT8, but for nodes; one with a bias is two of OpenVINO's."""
    import logging
    import os

    # Else it tells its maker of every use, unless a person has opted out.
    os.environ.setdefault("NNCF_CI", "1")
    nncf = needed("nncf", "INT8 for OpenVINO")
    logging.getLogger("nncf").setLevel(logging.ERROR)
    patterns = [rf"{re.escape(name)}(/WithoutBiases)?" for name in kept]
    return nncf.quantize(
        model,
        nncf.Dataset([np.ascontiguousarray(tile.numpy()) for tile in tiles]),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(tiles),
        ignored_scope=nncf.IgnoredScope(patterns=patterns) if patterns else None,
    )


def _weights(path: Path) -> Path:
    return path.with_suffix(".bin")


def _digest(path: Path) -> str:
    return str(xxhash.xxh3_128(path.read_bytes()).hexdigest())
