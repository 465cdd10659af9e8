"""Write the weights of ``--init-from synthetic`` from a run; `make synthetic` trains it first.

    .venv/bin/python docs/synthetic_weights.py runs/synthetic/best.pt

They are those of the run without its state, in bf16: 4.3 MB.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from training.checkpoint import Checkpoint, load, save
from training.run.pretrained import SYNTHETIC


def main(checkpoint: str) -> None:
    """Write the weights of a checkpoint in bf16."""
    saved = load(checkpoint)
    weights = {
        name: value.to(torch.bfloat16) if value.is_floating_point() else value
        for name, value in saved.model.items()
    }
    info = replace(saved.info, stores=tuple(Path(store).name for store in saved.info.stores))
    save(SYNTHETIC, Checkpoint(info=info, model=weights))
    print(f"{SYNTHETIC}: {SYNTHETIC.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
