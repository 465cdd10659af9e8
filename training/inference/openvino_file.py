"""OpenVINO's `.xml` with its `.bin` beside it; INT8 by NNCF."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from geoprep.storage import replaced
from training.checkpoint import CheckpointError
from training.inference.export_record import KEY, ExportRecord, file_hash, required_module
from training.inference.onnx_file import nodes_of, onnx_model
from training.inference.runner import Runner

_WHAT = "OpenVINO's format"
_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "bf16"}
"""What its plugin computes in where nothing is quantised; it takes fp32 where bf16 is not there."""

WORTH_FITTING = 20_000_000
"""Pixels of one shape of batch from which on a model of that shape pays: it takes half a second to
make, and saves a twentieth, since OpenVINO turns probabilities round in memory, twice, where it
does not know their shape (measured on two cores, ResNet34-UNet in INT8)."""

_MOST_AT_ONCE = 4
"""Batches at a time, on however many cores: windows of 1024 take a quarter of a GiB each."""

_SHAPES = 3
"""Of batches that models are kept for: those of a large image, and its last batch in a row."""


class OpenvinoRunner(Runner):
    """A model that OpenVINO has compiled for the CPU, for batches of any shape: soon an answer.

    Large jobs get a fitted one, compiled for each shape of batch, for several batches at a time:
    with ``auto`` where their pixels pay for it. Threads that share no layer do not wait for each
    other, least of all where other work takes turns with one of them. So a single window has its
    share of the threads: one, up to four cores.

    Parameters
    ----------
    model
        ``openvino.Model``.
    precision
        Of the convolutions.
    fitted
        Whether it is compiled for each shape of batch.
    """

    form = "OpenVINO"

    def __init__(self, model: Any, precision: str, *, fitted: bool = False) -> None:  # noqa: ANN401 - it has no types
        super().__init__(precision)
        self.compiled, self.at_once = fitted, _at_once() if fitted else 1
        self._model = model
        self._of_shape = lru_cache(_SHAPES)(partial(_Requests, model, precision))
        self._compiling = Lock()

    @cached_property
    def fitted(self) -> OpenvinoRunner:
        """The same, compiled for each shape of batch."""
        return OpenvinoRunner(self._model, self.precision, fitted=True)

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        pays = pixels >= WORTH_FITTING or self.compile_mode == "on"
        fits = pays and self.compile_mode != "off" and not self.compiled
        return (self.fitted if fits else self), ""

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        parts = self.at_once if len(image) % self.at_once == 0 else 1
        shape = (len(image) // parts, *image.shape[1:]) if self.compiled else None
        with self._compiling:
            requests = self._of_shape(shape)
        return requests.infer(image, parts)


def _at_once() -> int:
    return min(torch.get_num_threads(), _MOST_AT_ONCE)


class _Requests:
    """What a compiled model is asked through, by several threads at once.

    Parameters
    ----------
    model, precision
        See `OpenvinoRunner`.
    shape
        Of the batches: then threads compute several at a time. None: of any, by all threads.
    """

    def __init__(self, model: Any, precision: str, shape: tuple[int, ...] | None = None) -> None:  # noqa: ANN401
        self._openvino = required_module("openvino", _WHAT)
        settings = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "NUM_STREAMS": 1 if shape is None else _at_once(),
            "ENABLE_CPU_PINNING": False,
        }
        if shape is not None:
            model = model.clone()
            model.reshape(list(shape))
        self._channels = model.output(0).get_partial_shape()[3].get_length()
        compiled = self._openvino.Core().compile_model(model, "CPU", settings)
        self._free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(_at_once()):
            self._free.put(compiled.create_infer_request())
        self._taking = Lock()

    def infer(self, image: Tensor, parts: int) -> Tensor:
        """Return the probabilities of a batch that goes through in so many parts at once."""
        values = np.ascontiguousarray(image.numpy())
        count, _, *sides = values.shape
        result = torch.empty((count, *sides, self._channels))
        pairs = zip(np.split(values, parts), np.split(result.numpy(), parts), strict=True)
        # Nothing is copied in or out.
        tensors = [[self._openvino.Tensor(x, shared_memory=True) for x in pair] for pair in pairs]
        with self._taking:
            taken = [self._free.get() for _ in range(parts)]
        with ExitStack() as ends:  # last in, first out: waited for, then free, whichever fails
            for request in taken:
                ends.callback(self._free.put, request)
            for request, (one, other) in zip(taken, tensors, strict=True):
                request.set_input_tensor(one)
                request.set_output_tensor(other)
                request.start_async()
                ends.callback(request.wait)
        return result


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write two files; the arguments are those of `training.inference.torch_file.write`.

    The weights come first: until the new ``.xml`` is there, the old one does not fit them and says
    so.

    Raises
    ------
    UsageError
        A package is missing.
    """
    openvino = required_module("openvino", _WHAT)
    onnx = required_module("onnx", _WHAT)
    with TemporaryDirectory(dir=path.parent, prefix=".openvino-") as folder:
        source, made = Path(folder) / "model.onnx", Path(folder) / "model.xml"
        proto = onnx_model(network, record)
        onnx.save(proto, str(source))
        model = openvino.Core().read_model(str(source))
        if record.precision == "int8":
            model = _quantised(model, tiles, nodes_of(proto, record.kept))
        _save(openvino, model, record, made)
        for old, new in ((_weights(made), _weights(path)), (made, path)):
            with replaced(new) as whole:
                shutil.copyfile(old, whole)


def read(path: Path) -> tuple[Runner, ExportRecord]:
    """Return the runner of a file and what it is.

    Raises
    ------
    UsageError
        OpenVINO is not installed.
    CheckpointError
        The file is damaged or not one of `write`, or its weights are those of another.
    """
    openvino = required_module("openvino", _WHAT)
    weights = _weights(path)
    if not weights.is_file():
        raise CheckpointError(f"{weights} is missing: it holds the weights of {path}")
    try:
        model = openvino.Core().read_model(str(path), str(weights))
    except Exception as error:  # of several kinds without a common base
        raise CheckpointError(f"{path} is damaged or not OpenVINO's: export it again") from error
    text = model.get_rt_info([KEY]).astype(str) if model.has_rt_info([KEY]) else None
    record = ExportRecord.from_json(text, path)
    if file_hash(weights) != record.weights:
        raise CheckpointError(f"{weights} is damaged or not of {path}: export it again")
    return OpenvinoRunner(model, record.precision), record


def _save(openvino: Any, model: Any, record: ExportRecord, path: Path) -> None:  # noqa: ANN401
    """Save a model and the record of it, which holds the hash of the weights."""
    halves = record.precision != "float32"
    openvino.save_model(model, str(path), compress_to_fp16=halves)
    record = replace(record, weights=file_hash(_weights(path)))
    model.set_rt_info(record.to_json(), [KEY])
    openvino.save_model(model, str(path), compress_to_fp16=halves)


def _quantised(model: Any, tiles: Sequence[Tensor], kept: Sequence[str]) -> Any:  # noqa: ANN401
    """Return a model in INT8, but for nodes; one with a bias is two of OpenVINO's."""
    import logging
    import os

    # Else it tells its maker of every use, unless a person has opted out.
    os.environ.setdefault("NNCF_CI", "1")
    nncf = required_module("nncf", "INT8 for OpenVINO")
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
