"""The ``.pt2`` format of torch.export: graph and weights that torch alone reads, no pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from geoprep.storage.output_files import replaced
from training.checkpoint import ModelInfo, check_sums
from training.runners.export_record import KEY, ExportRecord, damage_reported
from training.runners.graph import exported, inference_module
from training.runners.runner import Runner, TorchRunner


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write a model file; INT8, where the format has it, is calibrated on tiles.

    ``tiles`` are uint8 (1, band, y, x) each, and none in other precisions.
    """
    del tiles
    export = in_bf16 if record.precision == "bfloat16" else exported
    program = export(inference_module(network, record.info), record.info)
    # The example would be pickled; shapes and dtypes are in the graph.
    program.example_inputs = None
    with replaced(path) as partial:
        torch.export.save(program, partial, extra_files={KEY: record.to_json()})


def read(path: Path, device: str = "cpu") -> tuple[Runner, ExportRecord]:
    """Return the runner of a file, and its record.

    ``device`` is ``cpu``, or of a format that computes there also such as ``cuda:1``.
    """
    del device
    extra = {KEY: ""}
    with damage_reported(path):
        check_sums(path)
        program = torch.export.load(path, extra_files=extra)
    record = ExportRecord.from_json(extra[KEY], path)
    module = plain_module(program)
    runner = TorchRunner(module, record.precision, form="torch.export", to_compile=lambda: module)
    return runner, record


def plain_module(program: ExportedProgram) -> fx.GraphModule:
    """Return a graph as a module to rewrite or to compile.

    It has no assertions on dtypes, which change with the precision.
    """
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()
    return module


class _InBf16(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result: Tensor = self.module(image)
        return result


def in_bf16(module: nn.Module, info: ModelInfo) -> ExportedProgram:
    """Return a graph that computes in bf16 as under autocast, with weights in bf16."""
    from torch._inductor.constant_folding import constant_fold

    with torch.no_grad():
        program = exported(_InBf16(module), info).run_decompositions({})
        rounded = plain_module(program)
        constant_fold(rounded)
        rounded.graph.eliminate_dead_code()
        rounded.delete_all_unused_submodules()  # with the weights in fp32
    return exported(rounded, info)
