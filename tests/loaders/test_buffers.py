"""Buffers are reused only when nothing refers to them any more."""

from __future__ import annotations

import gc

import numpy as np
import torch

from loaders.buffers import BufferPool


def pool(spare: int) -> BufferPool:
    return BufferPool(2, 5, 3, spare)


def test_a_released_block_is_reused():
    blocks = pool(spare=2)
    first = blocks.take()
    assert len(first) == blocks.nbytes == 192 + 64 + 3 * 64
    address = first.data_ptr()
    del first
    assert blocks.take().data_ptr() == address


def test_any_view_keeps_its_block():
    blocks = pool(spare=2)
    views = [
        lambda t: t[:64].view(8, 8).permute(1, 0)[2:, 3],
        lambda t: t[5:9].numpy(),
        lambda t: np.asarray(t[8:16].view(torch.int64)),
        lambda t: t.view(torch.int32)[1:].numpy()[2:],
    ]
    for view in views:
        held = view(blocks.take())
        taken = {blocks.take().data_ptr() for _ in range(5)}
        address = held.ctypes.data if isinstance(held, np.ndarray) else held.data_ptr()
        assert not any(start <= address < start + blocks.nbytes for start in taken)
        del held


def test_a_caller_that_keeps_everything_gets_new_blocks_not_a_deadlock():
    blocks = pool(spare=1)
    held = [blocks.take().fill_(i) for i in range(50)]
    assert [int(t[0]) for t in held] == list(range(50))


def test_no_more_than_the_spare_blocks_are_kept():
    blocks = pool(spare=3)
    held = [blocks.take() for _ in range(10)]
    del held
    gc.collect()
    assert len(blocks._blocks) == 3
