"""OpenVINO's format: ``.xml`` and a ``.bin`` file of weights; INT8 by NNCF."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from geoprep.storage.output_files import replaced
from geoprep.storage.versions import content_digest
from training.checkpoint import CheckpointError
from training.runners.export_record import KEY, ExportRecord, damage_reported, required_module
from training.runners.onnx_file import onnx_model
from training.runners.runner import Runner

_WHAT = "OpenVINO's format"
_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "bf16"}
"""Precision of operators that are not quantised; OpenVINO uses fp32 if the CPU lacks bf16."""

WORTH_FITTING = 6_000_000
"""Pixels in batches of one shape from which on a model compiled for the shape pays: compiling takes
half a second, and a job of 10 Mpx takes 0.92 of the time, with compiling and start (measured on two
cores with AVX512_VNNI, ResNet34-UNet in INT8)."""

_MOST_AT_ONCE = 4
"""Most batches at a time: windows of 1024 x 1024 take a quarter of a GiB each."""

_SHAPES = 3
"""Shapes of batch whose compiled models are kept: of an image, and of the end of its rows."""


class OpenvinoRunner(Runner):
    """A model compiled by OpenVINO for the CPU, for batches of any shape, with little latency.

    Large jobs use a fitted one, compiled for each shape of batch, with several batches at a
    time. Each batch then has its share of the threads (one, on up to four cores), since threads
    that compute the same layer wait for each other.
    """

    form = "OpenVINO"

    def __init__(self, model: Any, precision: str, *, fitted: bool = False) -> None:  # noqa: ANN401 - it has no types
        super().__init__(precision)
        self.compiled, self.at_once = fitted, _at_once() if fitted else 1
        # A small image may be one batch. (torch gains nothing from more images, of 0.6 GB each.)
        self.images = _at_once()
        self._model = model
        self._of_shape = lru_cache(_SHAPES)(self._requests)
        self._compiling = Lock()

    @cached_property
    def fitted(self) -> OpenvinoRunner:
        """The same model, compiled for each shape of batch."""
        return OpenvinoRunner(self._model, self.precision, fitted=True)

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        pays = pixels >= WORTH_FITTING or self.compile_mode == "on"
        fits = pays and self.compile_mode != "off" and not self.compiled
        return (self.fitted if fits else self), ""

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        openvino = required_module("openvino", _WHAT)
        with self._compiling:
            free, channels = self._of_shape(tuple(image.shape) if self.compiled else None)
        values = np.ascontiguousarray(image.permute(0, 2, 3, 1).numpy())
        result = torch.empty((*values.shape[:3], channels))
        request = free.get()
        try:
            # OpenVINO reads and writes these arrays without copies.
            request.set_input_tensor(openvino.Tensor(values, shared_memory=True))
            request.set_output_tensor(openvino.Tensor(result.numpy(), shared_memory=True))
            request.start_async()
            request.wait()
        finally:
            free.put(request)
        return result

    def _requests(self, shape: tuple[int, ...] | None) -> tuple[SimpleQueue[Any], int]:
        """Return requests of the model compiled for a shape (None: any), and its channels."""
        openvino = required_module("openvino", _WHAT)
        settings = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "INFERENCE_PRECISION_HINT": _HINTS[self.precision],
            "NUM_STREAMS": 1 if shape is None else _at_once(),
            "ENABLE_CPU_PINNING": False,
        }
        # It takes (n, y, x, band), as windows are in memory: same results.
        steps = openvino.preprocess.PrePostProcessor(self._model.clone())
        steps.input().tensor().set_layout(openvino.Layout("NHWC"))
        steps.input().model().set_layout(openvino.Layout("NCHW"))
        model = steps.build()
        if shape is not None:
            count, band, *sides = shape
            model.reshape([count, *sides, band])
        compiled = _core().compile_model(model, "CPU", settings)
        free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(_at_once()):
            free.put(compiled.create_infer_request())
        return free, model.output(0).get_partial_shape()[3].get_length()


@cache
def _core() -> Any:  # noqa: ANN401
    """Return the one core of this process.

    With AMX the CPU plugin of every core sets a stack for signals, and when it is freed it restores
    the one before, which may be gone: the next Ctrl-C would end the process (2026.4).
    """
    core = required_module("openvino", _WHAT).Core()
    core.get_versions("CPU")  # loads the plugin, before other libraries load theirs
    return core


def _at_once() -> int:
    return min(torch.get_num_threads(), _MOST_AT_ONCE)


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write two files, see `training.runners.torch_file.write`.

    The weights are written first: until the new ``.xml`` replaces the old one, the digest in
    the old one does not match, and reading fails.
    """
    openvino = required_module("openvino", _WHAT)
    onnx = required_module("onnx", _WHAT)
    with TemporaryDirectory(dir=path.parent, prefix=".openvino-") as folder:
        source, written = Path(folder) / "model.onnx", Path(folder) / "model.xml"
        proto = onnx_model(network, record)
        onnx.save(proto, str(source))
        model = _core().read_model(str(source))
        if record.precision == "int8":
            model = _quantised(model, tiles)
        halves = record.precision != "float32"
        openvino.save_model(model, str(written), compress_to_fp16=halves)
        record = replace(record, weights=content_digest(str(_weights(written))))
        model.set_rt_info(record.to_json(), [KEY])
        openvino.save_model(model, str(written), compress_to_fp16=halves)
        for old, new in ((_weights(written), _weights(path)), (written, path)):
            with replaced(new) as whole:
                shutil.copyfile(old, whole)


def read(path: Path, device: str = "cpu") -> tuple[Runner, ExportRecord]:
    """Return the runner of a file, see `training.runners.torch_file.read`."""
    del device
    core = _core()
    weights = _weights(path)
    if not weights.is_file():
        raise CheckpointError(
            f"{weights} is missing: it holds the weights of {path}. Keep both files together"
        )
    with damage_reported(path, "an OpenVINO model"):
        model = core.read_model(str(path), str(weights))
    text = model.get_rt_info([KEY]).astype(str) if model.has_rt_info([KEY]) else None
    record = ExportRecord.from_json(text, path)
    if content_digest(str(weights)) != record.weights:
        raise CheckpointError(
            f"{weights} is damaged or belongs to another file than {path}: export it again"
        )
    return OpenvinoRunner(model, record.precision), record


def _quantised(model: Any, tiles: Sequence[Tensor]) -> Any:  # noqa: ANN401
    """Return a model in INT8."""
    import logging
    import os

    # Without it NNCF sends telemetry, unless the user has opted out.
    os.environ.setdefault("NNCF_CI", "1")
    nncf = required_module("nncf", "INT8 for OpenVINO")
    logging.getLogger("nncf").setLevel(logging.ERROR)
    return nncf.quantize(
        model,
        nncf.Dataset([np.ascontiguousarray(tile.numpy()) for tile in tiles]),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(tiles),
    )


def _weights(path: Path) -> Path:
    return path.with_suffix(".bin")
