#!/usr/bin/env bash
# segmentation-models-pytorch 0.6.0: SoftCrossEntropyLoss and SoftBCEWithLogitsLoss divide by ignored pixels too.
#
# Guess: their mean is over the labelled pixels, as of torch's CrossEntropyLoss(ignore_index=255), whose drop-in
# replacement the first one is said to be, and as the DiceLoss of the same package leaves ignored pixels out.
# Seen: the sum over labelled pixels is divided by all pixels of the batch. Where 15 of 16 pixels are ignored, the loss
# and its gradient are a sixteenth of torch's. Sparse labels train at a fraction of the learning rate, beside a dice
# term that is not smaller, and the loss of a set is lower the less of it is labelled.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile torch==2.13.0 numpy==2.4.6
# Its encoders need timm and torchvision, its losses do not.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps segmentation-models-pytorch==0.6.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import sys
from importlib.metadata import files
from types import ModuleType

import torch
from torch.nn import functional

name = "segmentation_models_pytorch"
(start,) = (file.locate() for file in files(name) if str(file) == f"{name}/__init__.py")
package = ModuleType(name)
package.__path__ = [str(start.parent)]
sys.modules[name] = package
from segmentation_models_pytorch import losses  # noqa: E402

torch.manual_seed(0)
logits = torch.randn(2, 4, 16, 16)
classes = torch.randint(0, 4, (2, 16, 16))
for ignored in (0, 8, 15):
    label = classes.clone()
    label[:, :ignored] = 255
    known = label != 255
    roads, binary = logits[:, 0], (label % 2).float().masked_fill(~known, 255)
    pairs = {
        "SoftCrossEntropyLoss": (
            losses.SoftCrossEntropyLoss(ignore_index=255, smooth_factor=0.0)(logits, label),
            functional.cross_entropy(logits, label, ignore_index=255),
        ),
        "SoftBCEWithLogitsLoss": (
            losses.SoftBCEWithLogitsLoss(ignore_index=255)(roads, binary),
            functional.binary_cross_entropy_with_logits(roads[known], binary[known]),
        ),
        "DiceLoss": (
            losses.DiceLoss("multiclass", ignore_index=255)(logits, label),
            losses.DiceLoss("multiclass")(logits[:, :, ignored:], label[:, ignored:]),
        ),
    }
    for title, (given, of_labelled) in pairs.items():
        print(f"{ignored} of 16 rows ignored, {title}: {given / of_labelled:.4f} of that of the labelled rows")
PYTHON
diff "$folder/seen" - <<'EXPECTED'
0 of 16 rows ignored, SoftCrossEntropyLoss: 1.0000 of that of the labelled rows
0 of 16 rows ignored, SoftBCEWithLogitsLoss: 1.0000 of that of the labelled rows
0 of 16 rows ignored, DiceLoss: 1.0000 of that of the labelled rows
8 of 16 rows ignored, SoftCrossEntropyLoss: 0.5000 of that of the labelled rows
8 of 16 rows ignored, SoftBCEWithLogitsLoss: 0.5000 of that of the labelled rows
8 of 16 rows ignored, DiceLoss: 1.0000 of that of the labelled rows
15 of 16 rows ignored, SoftCrossEntropyLoss: 0.0625 of that of the labelled rows
15 of 16 rows ignored, SoftBCEWithLogitsLoss: 0.0625 of that of the labelled rows
15 of 16 rows ignored, DiceLoss: 1.0000 of that of the labelled rows
EXPECTED
echo "as described"
