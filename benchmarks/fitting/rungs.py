"""The ladder: the same training step, set up better from rung to rung."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.child import ROOT
from training.engine.native import CompileMode, EngineName, Precision

WORKER = "benchmarks.fitting.worker"
"""What is asked for measurements, see `benchmarks.child.ask`."""

IPEX_PYTHON = ROOT / ".venv-ipex" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to set up the step.

    Attributes
    ----------
    name, title
        In records and for people.
    keep_memory
        Whether glibc's allocator is told to keep what is freed.
    channels_last
        Layout of image, weights and all between: as batches come, or the usual (n, band, y, x).
    precision
        Of the convolutions.
    compile_mode
        What `torch.compile` is used for.
    engine
        ``native`` or ``ipex``.
    """

    name: str
    title: str
    keep_memory: bool = False
    channels_last: bool = False
    precision: Precision = "fp32"
    compile_mode: CompileMode = "off"
    engine: EngineName = "native"

    @property
    def python(self) -> Path | None:
        """The interpreter, where it is not this one."""
        return IPEX_PYTHON if self.engine == "ipex" else None


PLAIN = Rung("plain", "fp32, defaults, contiguous")
KEPT = replace(PLAIN, name="kept", title="+ memory kept", keep_memory=True)
BF16 = replace(
    KEPT, name="bf16", title="+ channels last, bf16", channels_last=True, precision="bf16"
)
FIT = replace(BF16, name="fit", title="+ loss compiled = fit", compile_mode="loss")
FIT_FP32 = replace(FIT, name="fit_fp32", title="fit in fp32", precision="fp32")
IPEX = replace(FIT, name="ipex", title="fit on IPEX", engine="ipex")

RUNGS = (PLAIN, KEPT, BF16, FIT, FIT_FP32, IPEX)
"""The first four are a ladder, the others stand beside the fourth, which is what `training.fit`
does by default. The layout has no rung of its own: it makes no difference that can be measured."""

CEILING = "convolutions"
"""Name of the bound: the convolutions of the step, forward and backward, and nothing else."""
