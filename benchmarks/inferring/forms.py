"""The forms of a network that are measured beside each other, and how a user makes their files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import ChildError, run
from benchmarks.fitting.rungs import IPEX_PYTHON


@dataclass(frozen=True, slots=True)
class Form:
    """A way to run a network.

    Attributes
    ----------
    title
        For people.
    file
        Its name; empty for the checkpoint.
    options
        Of `training.export`, or of the runner of a checkpoint.
    compiled
        Whether it is compiled before it runs.
    """

    title: str
    file: str
    options: Mapping[str, str]
    compiled: bool = False

    @property
    def python(self) -> str:
        """The interpreter it runs in: Intel's extension has an environment of its own."""
        return str(IPEX_PYTHON) if self.file.endswith(".ipex") else sys.executable


FORMS: dict[str, Form] = {
    "fp32": Form("checkpoint, fp32", "", {"precision": "fp32"}),
    "bf16": Form("checkpoint, bf16 autocast", "", {"precision": "bf16"}),
    "bf16-compiled": Form("checkpoint, bf16 compiled", "", {"precision": "bf16"}, compiled=True),
    "pt2-bf16": Form("torch.export bf16", "bf16.pt2", {"format": "bf16"}, compiled=True),
    "pt2-int8": Form("torch.export INT8 (PT2E)", "int8.pt2", {"format": "int8"}, compiled=True),
    "onnx-fp32": Form("ONNX Runtime fp32", "fp32.onnx", {"format": "onnx"}),
    "onnx-int8": Form("ONNX Runtime INT8", "int8.onnx", {"format": "onnx", "int8": ""}),
    "openvino-bf16": Form("OpenVINO bf16", "bf16.xml", {"format": "openvino"}),
    "openvino-int8": Form("OpenVINO INT8 (NNCF)", "int8.xml", {"format": "openvino", "int8": ""}),
    "ipex-int8": Form("IPEX INT8", "int8.ipex", {"format": "ipex-int8"}),
}
BASE = "bf16-compiled"
"""What INT8 is promised to be twice as fast as."""


def file_of(form: Form, checkpoint: Path, store: str, work: Path, tiles: int) -> Path:
    """Return the file of a form, made by the command that a user runs.

    Raises
    ------
    ChildError
        It cannot be made here.
    """
    if not Path(form.python).exists():
        raise ChildError("`make ipex` makes its environment")
    if not form.file:
        return checkpoint
    words = [w for name, value in form.options.items() for w in (f"--{name}", value) if w]
    command = [form.python, "-m", "training.export", str(checkpoint), *words]
    command += ["--calibrate", store, "--tiles", str(tiles), "--out", str(work / form.file)]
    run(command)
    return work / form.file


def size_of(file: Path) -> int:
    """Return the bytes of a form's file or files."""
    beside = file.with_suffix(".bin")
    return file.stat().st_size + (beside.stat().st_size if file.suffix == ".xml" else 0)


def task_of(form: Form, file: Path) -> dict[str, Any]:
    """Return what `benchmarks.inferring.worker` is told."""
    precision = "auto" if form.file else form.options["precision"]
    return {"file": str(file), "precision": precision, "compiled": form.compiled}
