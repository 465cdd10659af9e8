"""The forms of a network that are measured beside each other, and how a user makes their files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.child import ChildError, run
from benchmarks.fitting.runs import IPEX_PYTHON


@dataclass(frozen=True, slots=True)
class Form:
    """A way to run a network.

    Attributes
    ----------
    title
        For people.
    file
        Its name; empty for the checkpoint.
    export
        Options of `training.export` that make the file.
    runs
        Options of `training.predict` that choose the runner.
    """

    title: str
    file: str = ""
    export: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """The interpreter it runs in: Intel's extension has an environment of its own."""
        return str(IPEX_PYTHON) if self.file.endswith(".ipex") else sys.executable

    @property
    def whole(self) -> bool:
        """Whether it computes in whole numbers."""
        return self.file.startswith("int8")


_PLAIN, _COMPILED = ("--compile", "off"), ("--compile", "on")
_BF16 = ("--precision", "bf16")

FORMS: dict[str, Form] = {
    "fp32": Form("checkpoint, fp32", runs=("--precision", "fp32", *_PLAIN)),
    "bf16": Form("checkpoint, bf16 autocast", runs=(*_BF16, *_PLAIN)),
    "bf16-compiled": Form("checkpoint, bf16 compiled", runs=(*_BF16, *_COMPILED)),
    "pt2-bf16": Form("torch.export bf16", "bf16.pt2", {"format": "bf16"}, _COMPILED),
    "pt2-int8": Form("torch.export INT8 (PT2E)", "int8.pt2", {"format": "int8"}, _COMPILED),
    "onnx-fp32": Form("ONNX Runtime fp32", "fp32.onnx", {"format": "onnx"}),
    "onnx-int8": Form("ONNX Runtime INT8", "int8.onnx", {"format": "onnx", "int8": ""}),
    "openvino-bf16": Form("OpenVINO bf16", "bf16.xml", {"format": "openvino"}),
    "openvino-int8": Form("OpenVINO INT8 (NNCF)", "int8.xml", {"format": "openvino", "int8": ""}),
    "ipex-bf16": Form("IPEX bf16", "bf16.ipex", {"format": "ipex-bf16"}),
    "ipex-int8": Form("IPEX INT8", "int8.ipex", {"format": "ipex-int8"}),
}
BASE = "bf16-compiled"
"""What INT8 is promised to be twice as fast as."""
PROMISED = ("pt2-int8", "openvino-int8")


def file_of(form: Form, checkpoint: Path, store: str, exports: Path, tiles: int) -> Path:
    """Return the file of a form, made anew by the command that a user runs.

    Parameters
    ----------
    exports
        Folder for it.
    tiles
        Of the store, that INT8 takes its ranges from.

    Raises
    ------
    ChildError
        It cannot be made here.
    """
    if not Path(form.python).exists():
        raise ChildError("`make ipex` makes its environment")
    if not form.file:
        return checkpoint
    file = exports / form.file
    words = [w for name, value in form.export.items() for w in (f"--{name}", value) if w]
    command = [form.python, "-m", "training.export", str(checkpoint), *words]
    run([*command, "--calibrate", store, "--tiles", str(tiles), "--out", str(file)])
    return file


def size_of(file: Path) -> int:
    """Return the bytes of a form's file or files."""
    beside = file.with_suffix(".bin")
    return file.stat().st_size + (beside.stat().st_size if file.suffix == ".xml" else 0)
