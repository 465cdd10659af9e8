"""The ONNX format, in fp32, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from geoprep.errors import UsageError
from geoprep.storage.output_files import replaced
from training.checkpoint import CheckpointError
from training.runners.export_record import KEY, ExportRecord, damage_reported, required_module
from training.runners.graph import IMAGE, PROBABILITY, example_image, exported, inference_module
from training.runners.runner import Runner

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

_OPSET = 18
_WHAT = "a .onnx file"
_DIGEST_KEY = b'"weights": "'
"""Text before the digest in the record."""

_NO_DIGEST = "0" * 32


_CUDA = "CUDAExecutionProvider"
_CUDA_AT_ONCE = 2
"""Batches at a time on a CUDA device: one is copied while another is computed."""


class OnnxRunner(Runner):
    """A session of ONNX Runtime, which copies batches to its device and back."""

    form = "ONNX Runtime"

    def __init__(self, session: Any, precision: str, computes_on: str = "cpu") -> None:  # noqa: ANN401 - it has no types
        super().__init__(precision)
        self._session, self._computes_on = session, computes_on
        if computes_on != "cpu":  # it chooses kernels for each shape of batch
            self.fixed_batch, self.at_once = True, _CUDA_AT_ONCE

    @property
    def description(self) -> str:
        """See `Runner`."""
        return f"{self.precision} on {self._computes_on}, {self.form}"

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        values = np.ascontiguousarray(image.numpy())
        return torch.from_numpy(self._session.run([PROBABILITY], {IMAGE: values})[0])


def onnx_model(network: nn.Module, record: ExportRecord) -> ModelProto:
    """Return the ONNX model of a network in fp32."""
    required_module("onnx", _WHAT)
    program = exported(inference_module(network, record.info), record.info)
    proto = onnx_of(program, example_image(record.info))
    _name_axes(proto)
    return proto


def onnx_of(program: ExportedProgram, example: Tensor) -> ModelProto:
    """Return the ONNX model of a graph with one input and one output."""
    onnx = required_module("onnx", _WHAT)
    required_module("onnxscript", _WHAT)
    exporter = torch.onnx.export(
        program,
        (example,),
        input_names=[IMAGE],
        output_names=[PROBABILITY],
        opset_version=_OPSET,
        dynamo=True,
        verbose=False,
    )
    assert exporter is not None
    proto: ModelProto = exporter.model_proto
    # Runtimes refuse a file for its version alone, and onnx writes that of its newest operators.
    proto.ir_version = onnx.helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True)
    return proto


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write a ``.onnx`` file, see `training.runners.torch_file.write`."""
    del tiles
    onnx = required_module("onnx", _WHAT)
    required_module("onnxruntime", _WHAT)
    model = onnx_model(network, record)
    with replaced(path) as partial:
        unsigned = replace(record, weights=_NO_DIGEST)
        onnx.helper.set_model_props(model, {KEY: unsigned.to_json()})
        data = bytearray(model.SerializeToString())
        data[_digest_range(data)] = _digest(data).encode()
        partial.write_bytes(data)


def read(path: Path, device: str = "cpu") -> tuple[Runner, ExportRecord]:
    """Return the runner of a file, see `training.runners.torch_file.read`."""
    runtime = required_module("onnxruntime", _WHAT)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    data = path.read_bytes()
    providers: list[Any] = ["CPUExecutionProvider"]
    if device != "cpu":
        providers.insert(0, (_CUDA, _cuda_options(runtime, device)))
    with damage_reported(path, "an ONNX model"):
        session = runtime.InferenceSession(data, options, providers=providers)
    if device != "cpu" and _CUDA not in session.get_providers():
        raise UsageError(
            "device",
            f"{device}: ONNX Runtime has {_CUDA} but cannot start it. Check the driver, "
            "CUDA and cuDNN, or use cpu",
        )
    record = ExportRecord.from_json(session.get_modelmeta().custom_metadata_map.get(KEY), path)
    runner = OnnxRunner(session, record.precision, device)
    if record.weights != _digest(data):
        raise CheckpointError(
            f"{path} is damaged: its digest does not match its content. Export it again"
        )
    return runner, record


def _cuda_options(runtime: Any, device: str) -> dict[str, str]:  # noqa: ANN401 - a module
    """Return the options of ONNX Runtime's provider for a CUDA device."""
    listed = runtime.get_available_providers()
    if _CUDA not in listed:
        raise UsageError(
            "device",
            f"{device}: onnxruntime {runtime.__version__} has {', '.join(listed)} only. "
            "Install onnxruntime-gpu in place of onnxruntime, or use cpu",
        )
    number = device.partition(":")[2] or "0"
    return {"device_id": number, "cudnn_conv_algo_search": "HEURISTIC"}


def _digest_range(data: bytes | bytearray) -> slice:
    """Return where a file holds the digest in its record, the last field of an ONNX file."""
    start = data.rfind(_DIGEST_KEY) + len(_DIGEST_KEY)
    return slice(start, start + len(_NO_DIGEST))


def _digest(data: bytes | bytearray) -> str:
    """Return XXH3-128 of a file with zeros in place of its digest, in hexadecimal digits."""
    place = _digest_range(data)
    return xxhash.xxh3_128_hexdigest(data[: place.start] + _NO_DIGEST.encode() + data[place.stop :])


def _name_axes(model: ModelProto) -> None:
    """Name the free axes n, y and x; torch calls one ``32*y``."""
    for value, names in ((model.graph.input[0], "n_yx"), (model.graph.output[0], "nyx_")):
        for axis, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if name != "_":
                axis.dim_param = name
    del model.graph.value_info[:]  # they have the former names
