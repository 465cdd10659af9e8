"""The ``.pt2`` format of torch.export: graph and weights that torch alone reads, no pickle.

INT8 files hold plain operators that compute the same bits as ``quantized_decomposed``, which torch
alone cannot load; torch.compile makes INT8 convolutions of the latter only.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from geoprep.storage import replaced
from training.checkpoint import ModelInfo, check_sums
from training.engine import missing_compiler
from training.inference.export_record import KEY, ExportRecord, damage_reported, required_module
from training.inference.graph import exported, inference_module
from training.inference.runner import ModuleRunner, Runner

_aten = torch.ops.aten
_FLOAT: dict[str, Any] = {"dtype": torch.float32}


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


def quantised(
    program: ExportedProgram, tiles: Sequence[Tensor], kept: Sequence[str] = ()
) -> fx.GraphModule:
    """Return a graph with INT8 convolutions, calibrated on tiles; ``kept`` stay in float."""
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
        return without_assertions(pt2e.convert_pt2e(watched))


def without_assertions(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module without assertions on dtypes, which change with the precision."""
    for node in list(module.graph.nodes):
        if node.target is _aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()
    return module


def with_plain_operators(module: fx.GraphModule) -> fx.GraphModule:
    """Replace operators ``quantized_decomposed`` by plain ones with the same result; in place."""
    quantised_ops = torch.ops.quantized_decomposed
    graph = module.graph
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if node.target is quantised_ops.dequantize_per_tensor.default:
                source, scale, zero, low, high, _ = node.args[0].args
                plain = graph.call_function(_aten._to_copy.default, (source,), _FLOAT)
                for target, args in (
                    (_aten.mul.Tensor, (1.0 / scale,)),
                    (_aten.round.default, ()),
                    (_aten.add.Tensor, (zero,)),
                    (_aten.clamp.default, (low, high)),
                    (_aten.sub.Tensor, (zero,)),
                    (_aten.mul.Tensor, (scale,)),
                ):
                    plain = graph.call_function(target, (plain, *args))
            elif node.target is quantised_ops.dequantize_per_channel.default:
                kernel, scales, _, axis = node.args[:4]
                shape = [1] * _value(module, kernel).dim()
                shape[axis] = -1
                column = graph.call_function(_aten.view.default, (scales, shape))
                whole = graph.call_function(_aten._to_copy.default, (kernel,), _FLOAT)
                plain = graph.call_function(_aten.mul.Tensor, (whole, column))
            else:
                continue
        node.replace_all_uses_with(plain)
    return _cleaned(module)


def with_quantised_operators(module: fx.GraphModule) -> fx.GraphModule:
    """Undo `with_plain_operators`, so that torch.compile finds INT8 convolutions; in place."""
    import torch.ao.quantization.fx._decomposed  # defines the operators

    quantised_ops = torch.ops.quantized_decomposed
    graph = module.graph
    done: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if (found := _rounding(node)) is not None:
                if found not in done:
                    done[found] = graph.call_function(
                        quantised_ops.quantize_per_tensor.default, found
                    )
                restored = graph.call_function(
                    quantised_ops.dequantize_per_tensor.default, (done[found], *found[1:])
                )
            elif node.target is _aten.mul.Tensor and _is_kernel(module, node.args[0]):
                kernel, (scales, shape) = node.args[0].args[0], node.args[1].args
                name = f"zeros_{node.name}"
                module.register_buffer(
                    name, torch.zeros(len(_value(module, scales)), dtype=torch.int64)
                )
                zeros, axis = graph.get_attr(name), shape.index(-1)
                restored = graph.call_function(
                    quantised_ops.dequantize_per_channel.default,
                    (kernel, scales, zeros, axis, -128, 127, torch.int8),
                )
            else:
                continue
        node.replace_all_uses_with(restored)
    return _cleaned(module)


_ROUNDING = (
    *(_aten.mul.Tensor, _aten.sub.Tensor, _aten.clamp.default, _aten.add.Tensor),
    *(_aten.round.default, _aten.mul.Tensor, _aten._to_copy.default),
)
"""The operators that quantise and dequantise a tensor, last to first."""


def _rounding(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the arguments of ``quantize_per_tensor`` if a node ends such a chain, else None."""
    chain: list[fx.Node] = []
    for target in _ROUNDING:
        if not isinstance(node, fx.Node) or node.target is not target:
            return None
        chain.append(node)
        node = node.args[0]  # type: ignore[assignment]  # checked in the next round
    scaled_back, shifted_back, clamped, shifted = chain[:4]
    scale, zero, (low, high) = scaled_back.args[1], shifted_back.args[1], clamped.args[1:]
    known = isinstance(scale, float) and chain[5].args[1] == 1.0 / scale
    if not known or zero != shifted.args[1] or (low, high) != (0, 255):
        return None
    return node, scale, zero, low, high, torch.uint8


def _is_kernel(module: fx.GraphModule, node: Any) -> bool:  # noqa: ANN401 - node or number
    """Return whether a node casts INT8 weights to float."""
    if not isinstance(node, fx.Node) or node.target is not _aten._to_copy.default:
        return False
    source = node.args[0]
    return (
        isinstance(source, fx.Node)
        and source.op == "get_attr"
        and _value(module, source).dtype == torch.int8
    )


def _value(module: fx.GraphModule, node: fx.Node) -> Tensor:
    """Return the tensor of a ``get_attr`` node."""
    value: Tensor = operator.attrgetter(str(node.target))(module)
    return value


def _cleaned(module: fx.GraphModule) -> fx.GraphModule:
    """Remove nodes and tensors that nothing uses."""
    module.graph.eliminate_dead_code()
    used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    for name in [name for name, _ in module.named_buffers() if name not in used]:
        owner, _, last = name.rpartition(".")
        delattr(module.get_submodule(owner), last)
    module.recompile()
    return module
