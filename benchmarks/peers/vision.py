"""torchvision beside a torch that it was not built for.

Some peers import torchvision, and use none of its compiled operators here. On the package index
it comes built for CUDA; beside a CPU build of torch those operators do not load, and the import
ends in "operator torchvision::nms does not exist". Declaring what it looks up then is enough.
"""

from __future__ import annotations

import importlib
import sys

_MISSING = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> None:
    """Import torchvision, with its missing operators declared if that is what it takes.

    Where it is not installed nothing happens: the peer that wants it will say so.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declare_operators()
        importlib.import_module("torchvision")


def _declare_operators() -> None:
    """Declare operators without an implementation, and forget the import that failed."""
    import torch

    for name in _MISSING:
        torch.library.define(f"torchvision::{name}", _SCHEMA)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
