"""The page of the documentation with the figures of accelerators: one section per device."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common import Result
from benchmarks.tables import Table

KINDS = {"cuda": "NVIDIA and AMD GPUs (`cuda`)", "xpu": "Intel GPUs (`xpu`)", "mps": "Macs (`mps`)"}
"""Kinds of accelerators, and their names on the page."""

COMMAND = "python -m benchmarks.accelerators --write-page docs/performance/accelerators.md"

HEAD = """\
# Accelerators

Loading, training and prediction on GPUs, as `python -m benchmarks.accelerators` measures them.

"""
NONE_YET = """\
**Not run on any GPU yet.** The code for accelerators is tested on the CPU, and with stand-ins for
streams, events and pinned memory. There are no figures of speed or memory on a GPU, and no proof
that the code runs on one.

"""
TAIL = """\
## Not run

Neither tests nor benchmarks have run on {kinds}. Not run there:

- training: `--device`, bf16, tf32 and fp16, `--compile`, several devices under `torchrun`, steps
  whose loss is not finite
- `--batch-size auto` where memory runs out, `--residency device`, copies from pinned memory
- `fit --profile`
- `training.predict` in streams and on several devices, ONNX Runtime on a GPU
- checkpoints and exports of a run on a device

## Add your figures

With a torch build for your device, in the root folder of the repository:

```bash
make test-accelerator
{command}
```

The first command runs the tests that need a device. The second measures, adds a section for your
device to this page, and replaces an earlier section of the same device. `--json FILE` writes every
figure. `--device cpu --quick` runs the same code on a CPU, to check it; those figures mean nothing.
"""
_SECTION = re.compile(r"<!-- (\w+): (.*?) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def write_page(path: Path, result: Result, tables: Iterable[Table]) -> None:
    """Write the tables of a result to the page, beside the sections of other devices.

    Parameters
    ----------
    path
        The page; created if missing.
    result
        Figures of one device.
    tables
        Tables of the figures.
    """
    sections = read_sections(path)
    m, of = result.machine, result.settings
    key = (of["device"], m["device"])
    libraries = ", ".join(f"{name} {m['libraries'][name]}" for name in ("geoprep", "torch"))
    text = (
        f"## {m['device']}\n\n{result.started[:10]}, {libraries}, Python {m['python']}. Host: "
        f"{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB. Medians of {of['repeats']} "
        "rounds, with the range in brackets.\n\n"
    )
    text += "Small sizes (`--quick`): these figures mean nothing.\n\n" if of["quick"] else ""
    text += "\n".join(filter(None, (table.markdown(result) for table in tables)))
    text += "".join(f"\n- {note}\n" for note in result.notes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(sections | {key: text}), encoding="utf-8")


def read_sections(path: Path) -> dict[tuple[str, str], str]:
    """Return the sections of a page by kind and name of the device; empty without a page."""
    if not path.exists():
        return {}
    found = _SECTION.findall(path.read_text(encoding="utf-8"))
    return {(kind, name): text for kind, name, text in found}


def page(sections: dict[tuple[str, str], str]) -> str:
    """Return the page with the given sections; it names the kinds of devices without one."""
    measured = {kind for kind, _ in sections}
    missing = [name for kind, name in KINDS.items() if kind not in measured]
    head = HEAD + (NONE_YET if len(missing) == len(KINDS) else "")
    tail = TAIL.format(kinds=" or ".join(missing), command=COMMAND)
    if not missing:
        tail = tail[tail.index("## Add") :]
    written = (
        f"<!-- {kind}: {name} -->\n{text}<!-- end -->\n\n"
        for (kind, name), text in sorted(sections.items())
    )
    return f"{head}{''.join(written)}{tail}"
