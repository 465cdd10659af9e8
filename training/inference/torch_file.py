"""The ``.pt2`` format of torch.export: graph and weights that torch alone reads, no pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from geoprep.storage import replaced
from training.checkpoint import ModelInfo, check_sums
from training.engine import missing_compiler
from training.inference.export_record import KEY, ExportRecord, damage_reported
from training.inference.graph import exported, inference_module
from training.inference.int8_graph import (
    quantised,
    with_plain_operators,
    with_quantised_operators,
    without_assertions,
)
from training.inference.runner import ModuleRunner, Runner


class ExportedRunner(ModuleRunner):
    """A graph of torch.export.

    One in INT8 needs compiling: uncompiled, its convolutions compute in floating point on
    rounded numbers.
    """

    form = "torch.export"

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        if self.precision != "int8" or self.compile_mode == "off":
            return super().for_pixels(pixels)
        lacking = missing_compiler(self.device)
        if lacking:
            return self, f"model not compiled, {lacking}: INT8 is simulated in float, and slow"
        return self.in_shape, "compiling the model with the first batch, which INT8 needs"


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write a ``.pt2`` file; INT8 is calibrated on tiles, uint8 (n, band, y, x) each."""
    info = record.info
    if record.precision == "int8":
        program = exported(inference_module(network, info, "phased"), info)
        graph = plain_module(in_bf16(quantised(program, tiles, record.kept), info))
        program = exported(with_plain_operators(graph), info)
    else:
        make = in_bf16 if record.precision == "bfloat16" else exported
        program = make(inference_module(network, info), info)
    # The example would be pickled; shapes and dtypes are in the graph.
    program.example_inputs = None
    with replaced(path) as partial:
        torch.export.save(program, partial, extra_files={KEY: record.to_json()})


def read(path: Path) -> tuple[Runner, ExportRecord]:
    """Return the runner of a file and its record."""
    # Defines the quantised operators, which INT8 files of earlier versions hold.
    import torch.ao.quantization.fx._decomposed

    extra = {KEY: ""}
    with damage_reported(path):
        check_sums(path)
        program = torch.export.load(path, extra_files=extra)
    record = ExportRecord.from_json(extra[KEY], path)
    module = plain_module(program)
    if record.precision == "int8":
        module = with_quantised_operators(module)
    return ExportedRunner(module, record.precision), record


def plain_module(program: ExportedProgram) -> fx.GraphModule:
    """Return a graph as a module to rewrite or to compile."""
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return without_assertions(module)


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
