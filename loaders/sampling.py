"""The samples of an epoch, a pure function of (seed, epoch, position), and their split over ranks.

Position ``p`` of an epoch holds sample ``order(epoch)[p]``; its tile, crop and symmetry are hashed
from (seed, epoch, sample) by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), so that a
checkpoint means the same samples under any version of NumPy. Ranks take positions step by step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.batch import Crops, Ints
from loaders.road_sampling import Minimums

Augment = Literal["d4", "flips"]

SYMMETRIES: dict[Augment | None, int] = {None: 1, "flips": 4, "d4": 8}
"""Number of the symmetries 0..7 that an augmentation draws from: the first 1, 4 or 8."""

ROAD_TRIES = 8
"""Crops drawn for a sample under ``min_road`` or ``min_share`` before the best one is taken."""

STATE_VERSION = 1
"""Version of the state of a loader, see `BatchLoader.state_dict`."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Independent random streams of one sample.
_ORDER, _KEY, _TILE, _SYMMETRY, _PLACE = range(5)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 finaliser of every element."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash(seed: int, epoch: int, stream: int, samples: Ints) -> NDArray[np.uint64]:
    """Return 64 random bits for every sample."""
    prefix = np.zeros(1, np.uint64)
    for word in (seed, epoch, stream):
        prefix = _mix(prefix + np.uint64((int(word) * _GOLDEN + _GOLDEN) & _MASK))
    return _mix(prefix + samples.astype(np.uint64) * np.uint64(_GOLDEN))


def _below(bits: NDArray[np.uint64], limit: int) -> Ints:
    """Return integers in [0, limit), from the upper 32 bits (Lemire's multiplication)."""
    return (((bits >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def _unit(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return floats in [0, 1), from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Sampling:
    """The samples of an epoch; the fields are the arguments of `BatchLoader`.

    With ``weights`` the draw is stratified: the samples of a tile differ by less than two from
    their expectation. Without, every tile gives exactly ``crops_per_tile`` samples.
    """

    tiles: int
    side: int
    crop: int | None = None
    augment: Augment | None = None
    crops_per_tile: int = 1
    seed: int = 0
    shuffle: bool = True
    chosen: Ints | None = None
    weights: NDArray[np.float64] | None = None
    min_road: float = 0.0
    min_share: Mapping[str, float] | None = None
    least: Minimums = ()

    def __post_init__(self) -> None:
        if self.augment not in SYMMETRIES:
            raise UsageError(f"augment={self.augment!r} is not one of None, 'flips', 'd4'")
        if self.crop is not None and not 1 <= self.crop <= self.side:
            raise UsageError(
                f"crop={self.crop} does not fit into tiles of {self.side} x {self.side}: "
                f"use at most {self.side}, or a finer level"
            )
        if self.crops_per_tile < 1:
            raise UsageError(f"crops_per_tile={self.crops_per_tile} must be at least 1")

    def __len__(self) -> int:
        return self.drawn_tiles * self.crops_per_tile

    @property
    def drawn_tiles(self) -> int:
        """Number of tiles to draw from."""
        return self.tiles if self.chosen is None else len(self.chosen)

    @property
    def interleaved(self) -> bool:
        """Whether ranks take every n-th position of a step, else one run of positions each."""
        return False

    def identity(self) -> dict[str, Any]:
        """Return all settings that the samples of an epoch depend on, as plain values."""
        return {
            "samples": len(self),
            "seed": self.seed,
            "crop": self.crop,
            "augment": self.augment,
            "crops_per_tile": self.crops_per_tile,
            "shuffle": self.shuffle,
            "min_road": self.min_road,
            "weights": None if self.weights is None else zlib.crc32(self.weights.tobytes()),
            **({"min_share": dict(self.min_share)} if self.min_share else {}),
        }

    def like(self, identity: dict[str, Any]) -> Self:
        """Return the same samples in the order that the `identity` of a saved state describes."""
        del identity
        return self

    @property
    def sample_side(self) -> int:
        """Side of a sample in pixels."""
        return self.side if self.crop is None else self.crop

    def order(self, epoch: int) -> Ints:
        """Return the sample at every position of an epoch, int64 (len(self),)."""
        samples = np.arange(len(self), dtype=np.int64)
        if not self.shuffle:
            return samples
        return np.argsort(self._bits(epoch, _ORDER, samples), kind="stable")

    def crops(self, epoch: int, samples: Ints) -> Crops:
        """Return the crops of samples, int64 (n,) numbers below ``len(self)``."""
        tile = self.tile_of(epoch, samples)
        y, x = self._corner(epoch, samples, tile)
        op = _below(self._bits(epoch, _SYMMETRY, samples), SYMMETRIES[self.augment])
        key = self._bits(epoch, _KEY, samples).view(np.int64)
        return Crops(tile, y, x, op, key, samples)

    def _bits(self, epoch: int, stream: int, samples: Ints) -> NDArray[np.uint64]:
        return _hash(self.seed, epoch, stream, samples)

    def tile_of(self, epoch: int, samples: Ints) -> Ints:
        """Return the tile of every sample."""
        if self.weights is None:
            drawn = samples // self.crops_per_tile
        else:  # one draw from each of len(self) equal strata of the cumulative weight
            u = (samples + _unit(self._bits(epoch, _TILE, samples))) / len(self)
            drawn = np.searchsorted(self._cumulative, u, side="right")
        return drawn if self.chosen is None else self.chosen[drawn]

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        """Cumulative weight; infinite from the last tile with a positive weight on."""
        cumulative = np.cumsum(np.asarray(self.weights, np.float64))
        cumulative /= cumulative[-1]
        # Rounding can put a draw past the last weight: it must not select a tile of weight 0.
        cumulative[cumulative >= 1.0] = np.inf
        return cumulative

    def _corner(self, epoch: int, samples: Ints, tile: Ints) -> tuple[Ints, Ints]:
        if self.crop is None:
            zero = np.zeros(len(samples), np.int64)
            return zero, zero
        least = self.least
        tries = ROAD_TRIES if least else 1
        places = self.side - self.crop + 1
        bits = [self._bits(epoch, _PLACE + k, samples) for k in range(tries)]
        y = np.stack([_below(b, places) for b in bits], axis=1)
        x = np.stack([_below(b << np.uint64(32), places) for b in bits], axis=1)
        if not least:
            return y[:, 0], x[:, 0]
        met = [
            np.minimum(cells.fraction(tile[:, None], y, x, self.crop), share)
            for share, cells in least
        ]
        if len(met) > 1:  # as parts of what each class needs
            met = [part / share for part, (share, _) in zip(met, least, strict=True)]
        # The first with enough, else the one with most of the scarcest.
        best = np.argmax(np.minimum.reduce(met), axis=1)
        rows = np.arange(len(samples))
        return y[rows, best], x[rows, best]


class Step(NamedTuple):
    """Positions of one batch of one rank, and the progress of all ranks after it."""

    first: int
    last: int
    done: int
    stride: int = 1

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(range(self.first, self.last, self.stride))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Split of the positions of an epoch into steps and ranks."""

    samples: int  # positions in an epoch
    batch_size: int  # samples per rank and step
    rank: int = 0
    world_size: int = 1
    drop_last: bool = True  # leave out an incomplete last step
    # Every rank takes the same number of steps, as training under DDP needs; a last step of fewer
    # samples than ranks is left out. Else every position occurs once, and some take a step less.
    equal: bool = True
    interleaved: bool = False  # ranks take every n-th position of a step, else a run each

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size={self.batch_size} must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank={self.rank} is not within world_size={self.world_size}")
        full, tail = divmod(self.samples, self.batch_size * self.world_size)
        if tail and not full and self._dropped(tail):
            raise UsageError(
                f"{self.samples} samples do not fill one step of {self.batch_size} x "
                f"{self.world_size} ranks: use a smaller `batch_size` (at most "
                f"{self.samples // self.world_size}), more `crops_per_tile`, or fewer ranks"
            )

    def __len__(self) -> int:
        """Return the number of steps of this rank in a whole epoch."""
        full, tail = divmod(self.samples, self.batch_size * self.world_size)
        return full + sum(1 for _ in self.steps(self.samples - tail))

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Yield this rank's steps from ``start``, positions that all ranks together have passed."""
        stride = self.batch_size * self.world_size
        for first in range(start, self.samples, stride):
            step = self._step(first, min(first + stride, self.samples))
            if step.size and not self._dropped(step.done - first):
                yield step

    def _dropped(self, samples: int) -> bool:
        """Return whether a step of this many samples of all ranks is left out."""
        ranks = self.world_size
        short = samples < self.batch_size * ranks
        return short and (self.drop_last or (self.equal and samples < ranks))

    def _step(self, first: int, last: int) -> Step:
        """Return this rank's part of a step of all ranks."""
        rank, ranks = self.rank, self.world_size
        if self.interleaved:
            return Step(first + rank, last, last, ranks)
        start, stop = (first + r * (last - first) // ranks for r in (rank, rank + 1))
        return Step(start, stop, last)


class StepCrops:
    """The crops of all steps of an epoch.

    They are drawn at once: between two batches, which have replaced everything in the caches, a
    draw takes long, and it takes the interpreter's lock a hundred times, which others may hold.
    """

    def __init__(self, sampling: Sampling, epoch: int, steps: Sequence[Step]) -> None:
        self.epoch, self.steps, self._sampling = epoch, steps, sampling
        every = [np.arange(step.first, step.last, step.stride) for step in steps]
        self.positions = np.concatenate([np.empty(0, np.int64), *every])  # in the epoch, ascending
        self.samples = sampling.order(epoch)[self.positions]

    def __iter__(self) -> Iterator[Crops]:
        crops = self._sampling.crops(self.epoch, self.samples)
        ends = list(accumulate(step.size for step in self.steps))
        return map(crops.rows, map(slice, [0, *ends], ends))
