"""Buffers come back only when nobody looks at them any more."""

from __future__ import annotations

import gc

import numpy as np
import torch

from loaders.batch import Ring


def test_a_released_block_is_used_again():
    ring = Ring(1000, spare=2)
    first = ring.take()
    address = first.data_ptr()
    del first
    assert ring.take().data_ptr() == address


def test_any_view_keeps_its_block():
    ring = Ring(64, spare=2)
    views = [
        lambda t: t.view(8, 8).permute(1, 0)[2:, 3],
        lambda t: t[5:9].numpy(),
        lambda t: np.asarray(t[8:16].view(torch.int64)),
        lambda t: t.view(torch.int32)[1:].numpy()[2:],
    ]
    for view in views:
        held = view(ring.take())
        taken = {ring.take().data_ptr() for _ in range(5)}
        address = held.ctypes.data if isinstance(held, np.ndarray) else held.data_ptr()
        assert not any(start <= address < start + 64 for start in taken)
        del held


def test_a_consumer_that_holds_everything_gets_new_blocks_not_a_deadlock():
    ring = Ring(16, spare=1)
    held = [ring.take().fill_(i) for i in range(50)]
    assert [int(t[0]) for t in held] == list(range(50))


def test_no_more_than_the_spare_blocks_are_kept():
    ring = Ring(16, spare=3)
    held = [ring.take() for _ in range(10)]
    del held
    gc.collect()
    assert len(ring._blocks) == 3
