"""An ONNX file, and ONNX Runtime to carry it out; INT8 by its own static quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from geoprep.storage import replaced
from training.inference.export_record import KEY, ExportRecord, damage_reported, required_module
from training.inference.graph import (
    IMAGE,
    PROBABILITY,
    example_image,
    exported,
    inference_module,
    silenced,
)
from training.inference.runner import Runner

if TYPE_CHECKING:
    from onnx import ModelProto

_OPSET = 18
_WHAT = "a .onnx file"


class OnnxRunner(Runner):
    """A session of ONNX Runtime, on the CPU.

    Parameters
    ----------
    session
        ``onnxruntime.InferenceSession``.
    precision
        Of the convolutions.
    """

    form = "ONNX Runtime"

    def __init__(self, session: Any, precision: str) -> None:  # noqa: ANN401 - it has no types
        super().__init__(precision)
        self._session = session

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        values = np.ascontiguousarray(image.numpy())
        return torch.from_numpy(self._session.run([PROBABILITY], {IMAGE: values})[0])


def model_of(network: nn.Module, record: ExportRecord) -> ModelProto:
    """Return a network as an ONNX model in fp32, with its record.

    Raises
    ------
    UsageError
        A package is missing.
    """
    onnx = required_module("onnx", _WHAT)
    required_module("onnxscript", _WHAT)
    program = exported(inference_module(network, record.info), record.info)
    with silenced():
        made = torch.onnx.export(
            program,
            (example_image(record.info),),
            input_names=[IMAGE],
            output_names=[PROBABILITY],
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    proto: ModelProto = made.model_proto
    _name_axes(proto)
    onnx.helper.set_model_props(proto, {KEY: record.to_json()})
    return proto


def nodes_of(model: ModelProto, layers: Sequence[str]) -> list[str]:
    """Return the names of the nodes that carry out layers: those that take their kernels."""
    kernels = {f"{name}.weight" for name in layers}
    return [node.name for node in model.graph.node if kernels & set(node.input)]


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write a network as ONNX; the arguments are those of `training.inference.torch_file.write`.

    Raises
    ------
    UsageError
        A package is missing.
    """
    onnx = required_module("onnx", _WHAT)
    required_module("onnxruntime", _WHAT)
    model = model_of(network, record)
    with replaced(path) as partial:
        if record.precision == "int8":
            _quantise(model, tiles, record, partial)
        else:
            onnx.save(model, str(partial))


def read(path: Path) -> tuple[Runner, ExportRecord]:
    """Return the runner of a file and what it is.

    Raises
    ------
    UsageError
        ONNX Runtime is not installed.
    CheckpointError
        The file is damaged, or not one of `write`.
    """
    runtime = required_module("onnxruntime", _WHAT)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    with damage_reported(path, "an ONNX model"):
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    record = ExportRecord.from_json(session.get_modelmeta().custom_metadata_map.get(KEY), path)
    return OnnxRunner(session, record.precision), record


def _name_axes(model: ModelProto) -> None:
    """Give the free axes the names that everyone knows; torch calls one ``32*y``."""
    for value, names in ((model.graph.input[0], "n_yx"), (model.graph.output[0], "nyx_")):
        for axis, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if name != "_":
                axis.dim_param = name
    del model.graph.value_info[:]  # they speak of the old names


def _quantise(
    model: ModelProto, tiles: Sequence[Tensor], record: ExportRecord, target: Path
) -> None:
    """Write an INT8 model: convolutions between pairs of quantising and dequantising nodes."""
    from onnxruntime import quantization

    onnx = required_module("onnx", _WHAT)

    values = iter([{IMAGE: np.ascontiguousarray(tile.numpy())} for tile in tiles])
    reader = SimpleNamespace(get_next=lambda: next(values, None))
    with TemporaryDirectory(dir=target.parent, prefix=".onnx-") as folder:
        plain = Path(folder) / "fp32.onnx"
        onnx.save(model, str(plain))
        with silenced():
            quantization.quantize_static(
                str(plain),
                str(target),
                reader,
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                nodes_to_exclude=nodes_of(model, record.kept),
            )
    found = onnx.load(str(target))
    onnx.helper.set_model_props(found, {KEY: record.to_json()})
    onnx.save(found, str(target))
