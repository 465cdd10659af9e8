r"""Write the model of a checkpoint to a file that runs without this package, smaller and faster.

  geoprep export-model runs/moscow --format bf16 --out moscow.pt2
  geoprep export-model runs/moscow --format onnx --out moscow.onnx
  geoprep export-model runs/moscow --format openvino --int8 --calibrate moscow.zarr \
      --out moscow.xml
  geoprep export-model runs/moscow --format onnx --for deepness --out moscow_qgis.onnx

  fp32, bf16         .pt2 file of torch.export, runs with torch alone
  onnx               .onnx file for ONNX Runtime and others, in fp32
  openvino           .xml file with a .bin file of weights, for OpenVINO, in bf16 or INT8
  ipex-bf16,         .ipex file for Intel's extension, in an environment of its own (make ipex)
  ipex-int8

Input of every format: images, uint8 (n, band, y, x), sides multiples of 32. Output: probabilities,
float32 (n, y, x, channel). The model normalises the image itself. The file records what the model
was trained for: bands, rescaling, speeds, pixel size and threshold. geoprep predict and
geoprep evaluate accept it in place of a checkpoint.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import geoprep
from geoprep.cli.running import Status, run
from geoprep.errors import UsageError
from geoprep.options import option, overwrite_option
from geoprep.outputs import check_outputs
from geoprep.storage.versions import content_digest
from geoprep.texts import counted, printable
from training.cli import Command
from training.runners.model_options import CheckpointOptions

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.checkpoint import ModelInfo
    from training.runners.export_record import Precision

CLOSING = """\
INT8 takes a quarter of the bytes, and is two to three times as fast as float32 on processors with
instructions for it (avx512_vnni, amx_int8). It needs training tiles to find the range of values in
every layer. To measure its loss of accuracy: geoprep evaluate --compare.

Needs: pip install geoprep[deploy]
"""
SUFFIXES = {"fp32": ".pt2", "bf16": ".pt2", "onnx": ".onnx", "openvino": ".xml"}
SUFFIXES |= {"ipex-bf16": ".ipex", "ipex-int8": ".ipex"}
_COMPARED = 4
"""Number of tiles on which the file is compared with its checkpoint."""


@dataclass(frozen=True, kw_only=True)
class ModelFileOptions:
    """File: what is written."""

    format: Literal["fp32", "bf16", "onnx", "openvino", "ipex-bf16", "ipex-int8"] = option(
        "bf16", "Format and precision of the file, see above."
    )
    program: Literal["geoprep", "deepness"] = option(
        "geoprep",
        "Program that runs an .onnx file: deepness is the plugin of QGIS of this name, which takes "
        "images from 0 to 1 in tiles of 512 pixels and reads its settings from the file.",
        flag="--for",
    )
    int8: bool = option(False, "Write INT8; for the format openvino.")
    out: Path | None = option(None, "File to write, such as moscow.onnx.", "FILE")
    overwrite: bool = overwrite_option()


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """Calibration: tiles that give INT8 its ranges of values."""

    calibrate: str | None = option(
        None, "Store that the model was trained on; tiles of its train split are used.", "STORE"
    )
    tiles: int = option(100, "Number of tiles.", "N", least=1)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(CheckpointOptions, ModelFileOptions, CalibrationOptions):
    """Every option of ``geoprep export-model``."""


COMMAND = Command(
    *("export-model", ExportOptions.__bases__, __doc__, CLOSING),
    action=lambda given: export(ExportOptions(**given)),
)


def export(options: ExportOptions) -> int:
    """Write the file, print how it compares with its checkpoint, and return the exit status."""
    started = time.perf_counter()
    import torch

    from training.checkpoint import load_model
    from training.runners.export_record import ExportRecord
    from training.runners.model_files import export_files, model_file, write_model

    out, precision = check(options)
    file = model_file(options.checkpoint)
    inputs = [str(file), *([options.calibrate] if options.calibrate else [])]
    check_outputs(*export_files(out), inputs=inputs, overwrite=options.overwrite)
    network, info = load_model(file, device="cpu", model=options.model)
    tiles: list[Tensor] = []
    if options.calibrate:
        _say(f"reading tiles of {options.calibrate}")
        tiles = _training_tiles(options.calibrate, info, options.tiles)
    ranges = tiles if precision == "int8" else []
    record = ExportRecord(
        info=info,
        precision=precision,
        checkpoint=content_digest(str(file)),
        calibration=len(ranges),
        versions={"geoprep": geoprep.__version__, "torch": str(torch.__version__)},
    )
    calibrated = f", calibrated on {counted(len(ranges), 'tile')}" if ranges else ""
    _say(f"exporting {info.model} of {file} in {precision}{calibrated}")
    write_model(out, network, record, ranges, options.program)
    if options.program == "deepness":
        from training.runners.deepness_file import stretch_note

        _say(f"{out}: open it with Deepness in QGIS; it takes {', '.join(info.bands)}")
        if note := stretch_note(info):
            _say(note)
        return Status.DONE
    _compare_with_checkpoint(options, out, network, tiles)
    _say(f"done in {time.perf_counter() - started:.0f} s")
    return Status.DONE


def _training_tiles(store: str, info: ModelInfo, count: int) -> list[Tensor]:
    """Return at most ``count`` training tiles in random order, uint8 (1, band, y, x) each."""
    from loaders import BatchLoader
    from training.data import tiles_of
    from training.runners.runner import pad_image

    tiles = tiles_of(info, [store])
    loader = BatchLoader(tiles, 1, shuffle=True, drop_last=False)
    # The loader reuses its buffers.
    return [pad_image(batch.image).clone() for batch in islice(loader, count)]


def check(options: ExportOptions) -> tuple[Path, Precision]:
    """Return the file to write and its precision."""
    out, form = options.out, options.format
    if options.checkpoint.suffix in SUFFIXES.values():
        raise UsageError(
            f"{options.checkpoint} is already exported: name the checkpoint it was made from"
        )
    if out is None:
        raise UsageError("out", f"is missing: name a file such as moscow{SUFFIXES[form]}")
    if out.suffix != SUFFIXES[form]:
        fitting = [name for name, suffix in SUFFIXES.items() if suffix == out.suffix]
        other = f"; {out.suffix} belongs to `format` {' or '.join(fitting)}" if fitting else ""
        raise UsageError("out", f"{out}: files of `format` {form} end in {SUFFIXES[form]}{other}")
    if options.int8 and form not in ("openvino", "ipex-int8"):
        right = "ipex-int8" if form == "ipex-bf16" else "openvino"
        raise UsageError("format", f"{form} has no INT8: use `format` {right}")
    if options.program == "deepness" and form != "onnx":
        raise UsageError("format", f"{form}: deepness runs .onnx files, so use `format` onnx")
    rounded = options.int8 or form == "ipex-int8"
    if rounded and not options.calibrate:
        raise UsageError("INT8 needs training tiles: name their store with `calibrate`")
    usual: dict[str, Precision] = dict.fromkeys(("bf16", "openvino", "ipex-bf16"), "bfloat16")
    return out, "int8" if rounded else usual.get(form, "float32")


def _compare_with_checkpoint(
    options: ExportOptions, out: Path, network: nn.Module, tiles: list[Tensor]
) -> None:
    """Print the file's size and runner, and how its outputs differ from the checkpoint's."""
    import torch

    from training.runners.decoding import chosen_threshold
    from training.runners.graph import example_image
    from training.runners.model_files import export_files, load_runner
    from training.runners.runner import NativeRunner

    opened, record = load_runner(out)
    info = record.info
    runner, _ = opened.for_pixels(0)
    native = NativeRunner(network, info, device=torch.device("cpu"), precision="fp32")
    compared = tiles[:_COMPARED] or [example_image(info) for _ in range(_COMPARED)]
    expected, exported = (
        torch.cat([run(tile).flatten(end_dim=-2) for tile in compared]) for run in (native, runner)
    )
    apart = float((expected - exported).abs().mean(dtype=torch.float64))
    if info.has_classes:
        same = expected.argmax(dim=-1) == exported.argmax(dim=-1)
        agreement = f"same class at {same.double().mean():.3f} of the pixels"
    else:
        threshold = chosen_threshold(info)
        roads = expected[:, -1] >= threshold, exported[:, -1] >= threshold
        union = int((roads[0] | roads[1]).sum())
        iou = int((roads[0] & roads[1]).sum()) / union if union else 1.0
        agreement = f"IoU of the road masks {iou:.3f}"
    files = export_files(out)
    nbytes = sum(file.stat().st_size for file in files)
    _say(f"{' and '.join(map(str, files))}: {nbytes / 1e6:.1f} MB, {runner.description}")
    _say(
        f"compared with the checkpoint in float32 on {len(compared)} "
        f"{'tiles' if tiles else 'images of noise'}: probabilities differ by {apart:.2g} on "
        f"average, {agreement}"
    )
    if record.precision == "int8":
        _say(
            "to measure accuracy: geoprep evaluate --compare "
            f"{options.checkpoint} {out} --on {options.calibrate}"
        )


def _say(line: str) -> None:
    print(printable(line), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m training.export``; return the exit status."""
    return run(COMMAND, arguments, "python -m training.export")


if __name__ == "__main__":
    sys.exit(main())
