"""A network as an exported graph: uint8 in, probabilities out, any number of windows of any size.

Normalisation is part of the graph, and so is the precision: what computes in bf16 says so itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from training.checkpoint import Facts
from training.deploy.folding import Doubling, folded
from training.deploy.record import needed
from training.model import STRIDE
from training.prediction.runner import Probabilities

IMAGE, PROBABILITY = "image", "probability"
"""Names of what goes in and comes out, where a format names them."""

_EXAMPLE = (2, 4 * STRIDE, 6 * STRIDE)
_MOST_WINDOWS, _MOST_STRIDES = 1024, 1024


def module_of(network: nn.Module, facts: Facts, doubling: Doubling = "transposed") -> Probabilities:
    """Return the module that is exported: uint8 (n, band, y, x) -> fp32 (n, y, x, channel).

    Parameters
    ----------
    network
        Trained, in eval mode.
    facts
        Of its checkpoint.
    doubling
        See `training.deploy.folding.folded`.
    """
    module = Probabilities(folded(network, doubling), facts.mean, facts.std).eval()
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in NativeRunner
    return module


def example(facts: Facts) -> Tensor:
    """Return an image of the right kind, uint8 (n, band, y, x), channels last."""
    count, rows, columns = _EXAMPLE
    image = torch.randint(0, 256, (count, len(facts.bands), rows, columns), dtype=torch.uint8)
    return image.contiguous(memory_format=torch.channels_last)


def exported(module: nn.Module, facts: Facts) -> ExportedProgram:
    """Return the graph of a module that takes an image of any size."""
    count = Dim("n", min=1, max=_MOST_WINDOWS)
    rows, columns = (STRIDE * Dim(name, min=1, max=_MOST_STRIDES) for name in "yx")
    with torch.no_grad(), quiet():
        return torch.export.export(
            module, (example(facts),), dynamic_shapes=({0: count, 2: rows, 3: columns},)
        )


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
    with quiet():
        pt2e = needed("torchao.quantization.pt2e.quantize_pt2e", "INT8")
        x86 = needed("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer", "INT8")
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


def in_bf16(module: nn.Module, facts: Facts) -> ExportedProgram:
    """Return a graph that computes in bf16 as autocast would, its weights stored so."""
    from torch._inductor.constant_folding import constant_fold

    with torch.no_grad(), quiet():
        program = exported(_InBf16(module), facts).run_decompositions({})
        rounded = plain_module(program)
        constant_fold(rounded)
        rounded.graph.eliminate_dead_code()
        rounded.delete_all_unused_submodules()  # with the weights in fp32
    return exported(rounded, facts)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings about the insides of torch and torchao from people."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
