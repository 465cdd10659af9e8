"""A `.pt2` file of torch.export: the graph and its weights, which torch alone reads, no pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError
from geoprep.storage import replaced
from training.deploy.graph import exported, in_bf16, module_of, plain_module, quantised
from training.deploy.record import KEY, Record, reading
from training.engine.native import missing_compiler
from training.prediction.runner import ModuleRunner, Runner

_CPU = torch.device("cpu")


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


def write(path: Path, network: nn.Module, record: Record, tiles: Sequence[Tensor]) -> None:
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
    facts = record.facts
    if record.precision == "int8":
        program = exported(module_of(network, facts, "phased"), facts)
        graph: nn.Module = quantised(program, tiles, record.kept)
        program = in_bf16(graph, facts)
    else:
        program = exported(module_of(network, facts), facts)
        if record.precision == "bfloat16":
            program = in_bf16(plain_module(program), facts)
    # The example would be pickled; shapes and dtypes are in the graph.
    program.example_inputs = None
    with replaced(path) as partial:
        torch.export.save(program, partial, extra_files={KEY: record.to_json()})


def read(path: Path) -> tuple[Runner, Record]:
    """Return the runner of a file and what it is.

    Raises
    ------
    CheckpointError
        The file is damaged, or not one of `write`.
    """
    # torch knows the operators of quantised graphs only once they have been imported.
    import torch.ao.quantization.fx._decomposed

    extra = {KEY: ""}
    with reading(path):
        check_sums(path)
        program = torch.export.load(path, extra_files=extra)
    record = Record.from_json(extra[KEY], path)
    module = plain_module(program)
    return ExportedRunner(module, device=_CPU, precision=record.precision), record


def check_sums(path: Path) -> None:
    """Raise at a damaged byte, which torch would take for a weight.

    Raises
    ------
    UsageError
        A checksum is not that of its bytes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except zlib.error as error:
        raise UsageError(str(error)) from error
    if damaged is not None:
        raise UsageError(f"checksum of {damaged}")
