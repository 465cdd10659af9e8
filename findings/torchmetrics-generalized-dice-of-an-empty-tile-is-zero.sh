#!/usr/bin/env bash
# torchmetrics 1.9.0: in GeneralizedDiceScore a tile without the class, predicted without it, counts as a failure.
#
# Guess: a perfect prediction has the score 1; a tile without roads and without predicted roads counts as 1 or is left
# out, as in the other metrics of torchmetrics.segmentation.
# Seen: four tiles, one with roads, all of them predicted perfectly. Without the background class the score is 0.25:
# each empty tile counts as 0. So it does in the value per class, with background too. DiceScore and MeanIoU leave such
# tiles out and say 1. The score of a test set is bounded by the share of its tiles that have roads.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import torch
from torchmetrics.segmentation import DiceScore, GeneralizedDiceScore, MeanIoU

label = torch.zeros(4, 4, 4, dtype=torch.long)
label[0, :2] = 1
options = {"num_classes": 2, "input_format": "index", "include_background": False}
for weight in ("square", "simple", "linear"):
    print("generalised Dice", weight, float(GeneralizedDiceScore(weight_type=weight, **options)(label, label)))
print("Dice", float(DiceScore(**options)(label, label)), "IoU", float(MeanIoU(**options)(label, label)))
per_class = GeneralizedDiceScore(num_classes=2, input_format="index", per_class=True)(label, label)
print("generalised Dice per class", per_class.tolist())
PYTHON
diff "$folder/seen" - <<'EXPECTED'
generalised Dice square 0.25
generalised Dice simple 0.25
generalised Dice linear 0.25
Dice 1.0 IoU 1.0
generalised Dice per class [1.0, 0.25]
EXPECTED
echo "as described"
