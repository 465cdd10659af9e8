"""The ladder: the same training step, set up better from rung to rung."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.child import ROOT
from training.engine.native import CompileMode, EngineName, Precision

WORKER = "benchmarks.fitting.worker"
"""What is asked for measurements, see `benchmarks.child.ask`."""

IPEX_PYTHON = ROOT / ".venv-ipex" / "bin" / "python"

RUN_CPU = ("-m", "torch.backends.xeon.run_cpu", "--disable-numactl", "--no-python")
"""Options of Python before the command. Not all containers may bind memory, so numactl is not
asked for: on the one socket measured here it would have nothing to choose from."""


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
        Layout of image, weights and all between.
    precision
        Of the convolutions.
    fused
        One kernel for the optimizer.
    compile_mode
        What `torch.compile` is used for.
    engine
        ``native`` or ``ipex``.
    launcher
        Options of Python to start the process with.
    """

    name: str
    title: str
    keep_memory: bool = False
    channels_last: bool = False
    precision: Precision = "fp32"
    fused: bool = False
    compile_mode: CompileMode = "off"
    engine: EngineName = "native"
    launcher: tuple[str, ...] = ()

    @property
    def python(self) -> Path | None:
        """The interpreter, where it is not this one."""
        return IPEX_PYTHON if self.engine == "ipex" else None


PLAIN = Rung("plain", "fp32, defaults")
KEPT = replace(PLAIN, name="kept", title="+ memory kept", keep_memory=True)
LAST = replace(KEPT, name="channels_last", title="+ channels last", channels_last=True)
BF16 = replace(LAST, name="bf16", title="+ bf16 autocast", precision="bf16")
FUSED = replace(BF16, name="fused", title="+ fused optimizer", fused=True)
FIT = replace(FUSED, name="fit", title="+ loss compiled = fit", compile_mode="loss")
RUN = replace(FIT, name="run_cpu", title="fit under run_cpu", launcher=RUN_CPU)
MODEL = replace(FIT, name="model", title="fit, network compiled too", compile_mode="model")
FIT_FP32 = replace(FIT, name="fit_fp32", title="fit in fp32", precision="fp32")
IPEX = replace(FIT, name="ipex", title="fit on IPEX", engine="ipex")

RUNGS = (PLAIN, KEPT, LAST, BF16, FUSED, FIT, RUN, MODEL, FIT_FP32, IPEX)
"""The first six are a ladder, the others stand beside the sixth, which is what `training.fit`
does by default."""

CEILING = "convolutions"
"""Name of the bound: the convolutions of the step, forward and backward, and nothing else."""
