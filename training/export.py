"""``python -m training.export``: a trained network as a file that runs without this package."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geoprep.errors import UsageError
from training.cli import Command, Status, option, run_command
from training.prediction import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.checkpoint import Facts
    from training.inference import Precision

INTRODUCTION = """\
Turn a checkpoint into a file that runs without this package, smaller and faster.

  python -m training.export runs/moscow --format int8 --calibrate moscow.zarr --out moscow-int8.pt2
  python -m training.export runs/moscow --format bf16 --out moscow.pt2
  python -m training.export runs/moscow --format onnx --out moscow.onnx
  python -m training.export runs/moscow --format openvino --int8 --calibrate moscow.zarr \\
      --out moscow.xml

  fp32, bf16, int8   a .pt2 file of torch.export, which torch alone runs
  onnx               a .onnx file for ONNX Runtime and many others; fp32, or INT8
  openvino           a .xml file, with a .bin beside it, for OpenVINO; bf16, or INT8
  ipex-bf16,         a .ipex file for Intel's extension, in its own environment (make ipex)
  ipex-int8

In every one goes an image uint8 (n, band, y, x) and out come probabilities float32
(n, y, x, channel): normalisation is inside. Sides are multiples of 32. What the network is for, its
bands, their rescaling, its speeds, its ground sample distance and its threshold, is in the file,
and training.predict and training.evaluate take it in place of a checkpoint.
"""
CLOSING = """\
INT8 counts in whole numbers: a quarter of the bytes, and two to three times as fast on processors
that have instructions for it (avx512_vnni, amx_int8). It takes the range of every layer from tiles
that the network was trained on. What it costs: python -m training.evaluate --compare.

Needs: pip install geoprep[deploy]

"""
SUFFIXES = {"fp32": ".pt2", "bf16": ".pt2", "int8": ".pt2", "onnx": ".onnx", "openvino": ".xml"}
SUFFIXES |= {"ipex-bf16": ".ipex", "ipex-int8": ".ipex"}
_COMPARED = 4
"""Tiles on which the file is compared with its checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """File: what is written."""

    format: Literal["fp32", "bf16", "int8", "onnx", "openvino", "ipex-bf16", "ipex-int8"] = option(
        "bf16", "Of the file, see above."
    )
    int8: bool = option(False, "INT8 also for onnx and openvino.")
    out: Path | None = option(None, "The file.", "FILE")
    overwrite: bool = option(False, "Replace a file that is there.")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Calibration: what INT8 takes its ranges from."""

    calibrate: str | None = option(
        None, "The store that the network was trained on; tiles of its train split.", "STORE"
    )
    tiles: int = option(100, "How many.", "N", least=1)
    seed: int = option(0, "Decides which.", "N", least=0)
    keep_float: str | None = option(
        None,
        "Layers that are not to be in INT8, by name, such as network.head; auto: those whose INT8 "
        "does most harm, until the mean difference of probabilities is at most 0.01, which is "
        "two or three of the steps in which maps hold them.",
        "auto|LAYER,...",
    )


@dataclass(frozen=True, kw_only=True)
class Request(Checkpoint, Written, Calibration):
    """All of it."""


COMMAND = Command("python -m training.export", Request.__bases__, INTRODUCTION, CLOSING)


def export(request: Request) -> int:
    """Write the file, say how it compares, and return the exit status."""
    from importlib.metadata import version

    from training.checkpoint import load_network
    from training.inference import Record, file_hash, network_file, training_tiles, write_network

    out, precision = check(request)
    started = time.perf_counter()
    file = network_file(request.checkpoint)
    network, facts = load_network(file, device="cpu", weights=request.weights, model=request.model)
    tiles: list[Tensor] = []
    if request.calibrate:
        _say(f"reading tiles of {request.calibrate}")
        tiles = training_tiles([request.calibrate], facts, request.tiles, request.seed)
    ranges = tiles if precision == "int8" else []
    record = Record(
        facts=facts,
        precision=precision,
        checkpoint=file_hash(file),
        calibration=len(ranges),
        kept=_kept(request, network, facts, ranges),
        versions={name: version(name) for name in ("geoprep", "torch")},
    )
    with_ = f", ranges from {len(ranges)} tiles" if ranges else ""
    _say(f"{facts.network} of {file} in {precision}{with_}")
    write_network(out, network, record, ranges)
    _say(f"written in {time.perf_counter() - started:.0f} s")
    _summary(request, out, network, tiles)
    return Status.DONE


def check(request: Request) -> tuple[Path, Precision]:
    """Return the file and its precision.

    Raises
    ------
    UsageError
        Options do not go together, or the file is there or cannot be written.
    """
    out, kind = request.out, request.format
    if request.checkpoint.suffix in SUFFIXES.values():
        raise UsageError(
            f"{request.checkpoint} was exported already: name the checkpoint it was made from"
        )
    if out is None:
        raise UsageError(f"--out FILE is missing: such as moscow{SUFFIXES[kind]}")
    if out.suffix != SUFFIXES[kind]:
        fitting = [name for name, suffix in SUFFIXES.items() if suffix == out.suffix]
        other = f"; {out.suffix} is of --format {' or '.join(fitting)}" if fitting else ""
        raise UsageError(f"--out {out}: files of --format {kind} end in {SUFFIXES[kind]}{other}")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: the folder {out.parent} does not exist: create it first")
    if out.exists() and not request.overwrite:
        raise UsageError(f"{out} exists: --overwrite replaces it")
    if request.int8 and kind in ("fp32", "bf16", "ipex-bf16"):
        right = "ipex-int8" if kind == "ipex-bf16" else "int8"
        raise UsageError(f"--format {kind} and --int8 are two precisions: take --format {right}")
    whole = request.int8 or kind in ("int8", "ipex-int8")
    if request.keep_float is not None and not whole:
        raise UsageError(f"--keep-float is for INT8, which --format {kind} alone is not")
    if whole and not request.calibrate:
        raise UsageError("INT8 takes its ranges from tiles: --calibrate STORE names the store")
    usual: dict[str, Precision] = dict.fromkeys(("bf16", "openvino", "ipex-bf16"), "bfloat16")
    return out, "int8" if whole else usual.get(kind, "float32")


def _kept(
    request: Request, network: nn.Module, facts: Facts, tiles: list[Tensor]
) -> tuple[str, ...]:
    """Return the layers that are not to be in INT8, by name, and say which."""
    from training.inference import AUTO, BOUND, layers_to_keep, named_layers

    if request.keep_float is None:
        return ()
    if request.keep_float != AUTO:
        names = [name for name in request.keep_float.split(",") if name]
        kept, why = named_layers(network, facts, names), "as asked"
    else:
        _say("rounding one layer after the other")
        kept, apart = layers_to_keep(network, facts, tiles)
        why = f"probabilities {apart:.2g} apart, at most {BOUND:g}"
    _say(f"left in float: {', '.join(kept) or 'no layer'} ({why})")
    return kept


def _summary(request: Request, out: Path, network: nn.Module, tiles: list[Tensor]) -> None:
    """Print size, runner, and how far the file's answers are from the checkpoint's."""
    import torch

    from training.decode import chosen_threshold
    from training.inference import NativeRunner, agreement, example, files_of, load_runner

    opened, record = load_runner(out)
    facts = record.facts
    runner, _ = opened.for_pixels(0)
    native = NativeRunner(network, facts, device=torch.device("cpu"), precision="fp32")
    threshold = chosen_threshold(facts.targets, None, facts.threshold)
    compared = tiles[:_COMPARED] or [example(facts) for _ in range(_COMPARED)]
    apart, iou = agreement(native, runner, compared, threshold)
    files = files_of(out)
    nbytes = sum(file.stat().st_size for file in files)
    _say(f"{' and '.join(map(str, files))}: {nbytes / 1e6:.1f} MB, {runner.description}")
    _say(
        f"against the checkpoint in float32 on {len(compared)} "
        f"{'tiles' if tiles else 'images of noise'}: probabilities {apart:.2g} apart in the "
        f"mean, road masks with an IoU of {iou:.3f}"
    )
    if record.precision == "int8":
        _say(
            f"what it costs: python -m training.evaluate --compare {request.checkpoint} {out} "
            f"--on {request.calibrate}"
        )


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Export as the command line says; return the exit status."""
    return run_command(lambda: export(Request(**COMMAND.parse(arguments))), COMMAND)


if __name__ == "__main__":
    sys.exit(main())
