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
from training.checkpoint import CheckpointError
from training.deploy.graph import exported, in_bf16, module_of, plain_module, quantised
from training.deploy.record import KEY, Record
from training.engine.native import missing_compiler
from training.prediction.runner import Compile, CompiledRunner, ModuleRunner, Runner

SUFFIX = ".pt2"
_CPU = torch.device("cpu")


class ExportedRunner(ModuleRunner):
    """A graph of torch.export.

    One in INT8 needs compiling: as it is, every convolution is carried out in fp32 on rounded
    numbers.
    """

    @property
    def description(self) -> str:
        """See `Runner`."""
        return f"{super().description}, torch.export"

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        if self.precision != "int8" or self._compile_mode == "off":
            return super().for_pixels(pixels)
        lacking = missing_compiler(self.device)
        if lacking:
            return self, f"not compiled, {lacking}: int8 is only simulated, and slow"
        self._compiled = self._compiled or CompiledRunner(self)
        return self._compiled, "compiled, which int8 needs"


def write(path: Path, network: nn.Module, record: Record, tiles: Sequence[Tensor]) -> Record:
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

    Returns
    -------
    Record
        As it is in the file.
    """
    facts = record.facts
    if record.precision == "int8":
        program = exported(module_of(network, facts, "phased"), facts)
        graph: nn.Module = quantised(program, tiles, record.kept)
        program = in_bf16(graph, facts)
    else:
        make = in_bf16 if record.precision == "bfloat16" else exported
        program = make(module_of(network, facts), facts)
    # The example would be pickled; shapes and dtypes are in the graph.
    program.example_inputs = None
    with replaced(path) as partial:
        torch.export.save(program, partial, extra_files={KEY: record.to_json()})
    return record


def read(path: Path, compile_mode: Compile = "auto") -> tuple[ExportedRunner, Record]:
    """Return the runner of a file and what it is.

    Raises
    ------
    CheckpointError
        The file is damaged, or not one of `write`.
    """
    # torch knows the operators of quantised graphs only once they have been imported.
    import torch.ao.quantization.fx._decomposed

    extra = {KEY: ""}
    try:
        check_sums(path)
        program = torch.export.load(path, extra_files=extra)
    except Exception as error:  # torch raises of everything at a file that is not one
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} is damaged or not an exported network ({first}): export it again"
        ) from error
    record = Record.from_json(extra[KEY], path)
    runner = ExportedRunner(
        plain_module(program), device=_CPU, precision=record.precision, compile_mode=compile_mode
    )
    return runner, record


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
