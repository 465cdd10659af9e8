"""The ``.ipex`` format: TorchScript in bf16 or INT8, which runs with Intel's extension.

Intel has retired the extension; it needs an environment of its own, see `training.engine.ipex`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from geoprep.storage.output_files import replaced
from training.checkpoint import check_sums
from training.engine.ipex import optimize_inference, quantisers, require_extension
from training.runners.export_record import KEY, ExportRecord, damage_reported
from training.runners.graph import example_image, inference_module
from training.runners.runner import Runner, TorchRunner


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write a ``.ipex`` file, see `training.runners.torch_file.write`."""
    require_extension("a .ipex file")
    with torch.no_grad():
        module = inference_module(network, record.info)
        if tiles:
            traced = _quantised(module, tiles)
        else:
            traced = _frozen(optimize_inference(module), example_image(record.info))
    with replaced(path) as partial:
        torch.jit.save(traced, str(partial), _extra_files={KEY: record.to_json()})


def read(path: Path, device: str = "cpu") -> tuple[Runner, ExportRecord]:
    """Return the runner of a file, see `training.runners.torch_file.read`."""
    del device
    require_extension("a .ipex file")
    extra: dict[str, Any] = {KEY: ""}
    with damage_reported(path):
        check_sums(path)
        module = torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]  # torch's
    text = extra[KEY]
    record = ExportRecord.from_json(text.decode() if isinstance(text, bytes) else text, path)
    # The extension fuses the operators of a frozen trace for every shape of batch.
    return TorchRunner(torch.jit.freeze(module.eval()), record.precision, form="IPEX"), record


def _quantised(module: nn.Module, tiles: Sequence[Tensor]) -> torch.jit.ScriptModule:
    """Return a frozen trace in INT8, with other operators in bf16."""
    prepare, convert, settings = quantisers()
    watched = prepare(module, settings, example_inputs=(tiles[0],), inplace=False)
    for tile in tiles:
        watched(tile)
    return _frozen(convert(watched), tiles[0])


def _frozen(module: Callable[..., Any], image: Tensor) -> torch.jit.ScriptModule:
    """Return the trace of a module under autocast, with its weights as constants."""
    with torch.autocast("cpu", torch.bfloat16):
        traced = torch.jit.trace(module, (image,), check_trace=False)  # type: ignore[no-untyped-call]  # torch's
        frozen: torch.jit.ScriptModule = torch.jit.freeze(traced)
    return frozen
