"""A `.pt2` file of torch.export: the graph and its weights, which torch alone reads, no pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from geoprep.storage import replaced
from training.checkpoint import ModelInfo, check_sums
from training.engine import missing_compiler
from training.inference.export_record import KEY, ExportRecord, damage_reported, required_module
from training.inference.graph import exported, inference_module, silenced
from training.inference.runner import ModuleRunner, Runner


class ExportedRunner(ModuleRunner):
    """A graph of torch.export.

    One in INT8 needs compiling: as it is, every convolution is carried out in fp32 on rounded
    numbers.
    """

    form = "torch.export"

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        if self.precision != "int8" or self.compile_mode == "off":
            return super().for_pixels(pixels)
        lacking = missing_compiler(self.device)
        if lacking:
            return self, f"not compiled, {lacking}: int8 is only simulated, and slow"
        return self.in_shape, "compiled, which int8 needs"


def write(path: Path, network: nn.Module, record: ExportRecord, tiles: Sequence[Tensor]) -> None:
    """Write a network as torch.export knows it.

    Parameters
    ----------
    path
        Of the file.
    network
        Trained, in eval mode.
    record
        What it is; its precision decides how it computes.
    tiles
        For the ranges of INT8, uint8 (n, band, y, x) each.
    """
    info = record.info
    if record.precision == "int8":
        program = exported(inference_module(network, info, "phased"), info)
        graph: nn.Module = quantised(program, tiles, record.kept)
        program = in_bf16(graph, info)
    else:
        make = in_bf16 if record.precision == "bfloat16" else exported
        program = make(inference_module(network, info), info)
    # The example would be pickled; shapes and dtypes are in the graph.
    program.example_inputs = None
    with replaced(path) as partial:
        torch.export.save(program, partial, extra_files={KEY: record.to_json()})


def read(path: Path) -> tuple[Runner, ExportRecord]:
    """Return the runner of a file and what it is.

    Raises
    ------
    CheckpointError
        The file is damaged, or not one of `write`.
    """
    # torch knows the operators of quantised graphs only once they have been imported.
    import torch.ao.quantization.fx._decomposed

    extra = {KEY: ""}
    with damage_reported(path):
        check_sums(path)
        program = torch.export.load(path, extra_files=extra)
    record = ExportRecord.from_json(extra[KEY], path)
    return ExportedRunner(plain_module(program), record.precision), record


def plain_module(program: ExportedProgram) -> fx.GraphModule:
    """Return a graph as a module to rewrite or to compile."""
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return _unasserted(module)


def _unasserted(module: fx.GraphModule) -> fx.GraphModule:
    """Return it without what asserts dtypes: they change when precision does."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()
    return module


def quantised(
    program: ExportedProgram, tiles: Sequence[Tensor], kept: Sequence[str] = ()
) -> fx.GraphModule:
    """Return a graph whose convolutions are INT8, by PyTorch's own static quantisation.

    Weights have a scale per channel, activations one per tensor, taken from the tiles.

    Parameters
    ----------
    program
        In fp32.
    tiles
        uint8 (n, band, y, x) each.
    kept
        Names of modules that stay as they are.

    Raises
    ------
    UsageError
        torchao is not installed.
    """
    with silenced():
        pt2e = required_module("torchao.quantization.pt2e.quantize_pt2e", "INT8")
        x86 = required_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer", "INT8")
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
        for name in kept:
            quantizer.set_module_name_qconfig(name, None)
        with torch.no_grad():
            watched = pt2e.prepare_pt2e(program.module(check_guards=False), quantizer)
            for tile in tiles:
                watched(tile)
            return _unasserted(pt2e.convert_pt2e(watched))


class _InBf16(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result: Tensor = self.module(image)
        return result


def in_bf16(module: nn.Module, info: ModelInfo) -> ExportedProgram:
    """Return a graph that computes in bf16 as autocast would, its weights stored so."""
    from torch._inductor.constant_folding import constant_fold

    with torch.no_grad(), silenced():
        program = exported(_InBf16(module), info).run_decompositions({})
        rounded = plain_module(program)
        constant_fold(rounded)
        rounded.graph.eliminate_dead_code()
        rounded.delete_all_unused_submodules()  # with the weights in fp32
    return exported(rounded, info)
