"""Cut the weights of ``--init-from synthetic`` out of a run; `make synthetic` trains it first.

    .venv/bin/python docs/synthetic_weights.py runs/synthetic/best.pt

Of a ResNet34-UNet that is what fits in 5 MB in bf16: the first half of the encoder and the last
half of the decoder. The deep layers have nine tenths of the weights, and a short run learns little
in them.
"""

import sys

import torch

from training.checkpoint import Checkpoint, load, save
from training.run.pretrained import SYNTHETIC

DEEP = ("encoder.layer3", "encoder.layer4", "decoder.0")


def main(checkpoint: str) -> None:
    """Write the weights of a checkpoint that are not deep, without the state of its run."""
    saved = load(checkpoint)
    weights = {
        name: value.to(torch.bfloat16) if value.is_floating_point() else value
        for name, value in saved.model.items()
        if not name.startswith(DEEP)
    }
    save(SYNTHETIC, Checkpoint(info=saved.info, model=weights))
    print(f"{SYNTHETIC}: {SYNTHETIC.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
