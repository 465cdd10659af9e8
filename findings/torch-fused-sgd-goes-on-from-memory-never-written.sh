#!/usr/bin/env bash
# torch 2.13.0: fused SGD whose first step is skipped goes on with a momentum that was never set.
#
# Guess: an optimizer step that a scaler of the loss skips (found_inf, as the first steps in fp16 usually are) leaves
# no trace, and the next step is the first one: with momentum 0.9 and gradients of 1, lr 0.1, weights become -0.1.
# Seen: the skipped step creates the momentum buffer without writing it, and the next one takes it for a momentum of
# steps before: weights move by whatever the memory held, here by 0.1 times 0.9 of a number of this process. Without
# momentum, not fused, or with fused AdamW, a skipped first step leaves nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - > "$folder/seen" <<'PYTHON'
import torch

HELD = 7.0


def trained(kind, **options):
    """Return the first weight after a skipped step and one with a gradient of 1."""
    weights = torch.nn.Parameter(torch.zeros(1_000))
    optimizer = kind([weights], lr=0.1, **options)
    weights.grad = torch.ones(1_000)
    if options.get("fused"):  # as torch.amp.GradScaler tells it to a fused optimizer
        optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(1.0)
        # Memory that is given out next holds a known number, in place of an accidental one.
        plain = torch.empty_like
        torch.empty_like = lambda *given, **named: plain(*given, **named).fill_(HELD)
        optimizer.step()
        torch.empty_like = plain
        optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    return round(weights[0].item(), 4)


print("sgd", trained(torch.optim.SGD, momentum=0.9))
print("sgd fused", trained(torch.optim.SGD, momentum=0.9, fused=True))
print("sgd fused, no momentum", trained(torch.optim.SGD, fused=True))
print("adamw fused", trained(torch.optim.AdamW, fused=True))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
sgd -0.1
sgd fused -0.73
sgd fused, no momentum -0.1
adamw fused -0.1
EXPECTED
echo "as described"
