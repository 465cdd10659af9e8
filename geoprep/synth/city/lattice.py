"""The skeleton of a synthetic city: a warped lattice of lines along which streets may run.

Coordinates ``(u, v)`` are metres along an irregular grid around the centre, bent and rotated. All
that follows the grain of the city is placed in them, so that neighbours never cross by accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geoprep.synth.city.frame import Frame

Rank = Literal["motorway", "primary", "secondary", "tertiary", "minor"]
Points = NDArray[np.float64]

SPACING_M = (82.0, 138.0)
"""Least and greatest distance between neighbouring lines."""
_VERTEX_M = 7.0
_MARGIN_M = 320.0
_JITTER_M = 5.0
# Each wave bends the grid by at most this slope; three of them stay well short of a fold.
_WAVE_SLOPE = 0.13
# Ranks of the lines from the motorway on, seven in turn, and from the central row on, eight.
_COLUMNS: dict[int, Rank] = {5: "primary", 2: "secondary", 4: "tertiary"}
_ROWS: dict[int, Rank] = {0: "primary", 4: "secondary", 2: "tertiary", 6: "tertiary"}


class Edge(NamedTuple):
    """A stretch from node (i, j), axis 0 to (i, j + 1) and axis 1 to (i + 1, j)."""

    axis: int
    i: int
    j: int

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The two nodes."""
        step = (0, 1) if self.axis == 0 else (1, 0)
        return (self.i, self.j), (self.i + step[0], self.j + step[1])

    @property
    def line(self) -> tuple[int, int]:
        """Line of the lattice that the edge is on: axis and index."""
        return (0, self.i) if self.axis == 0 else (1, self.j)


@dataclass(frozen=True, slots=True)
class Warp:
    """A smooth map from lattice coordinates to metres of the frame."""

    centre: Points
    turn: Points
    waves: Points
    phases: Points
    shifts: Points

    def __call__(self, uv: Points) -> Points:
        """Map points (..., 2)."""
        angle = uv @ self.waves.T + self.phases
        bent = uv + np.sin(angle) @ self.shifts
        return bent @ self.turn.T + self.centre


@dataclass(frozen=True, slots=True)
class Lattice:
    """Lines, nodes (column, row, 2) in metres, and the rank of every line."""

    u: Points
    v: Points
    nodes: Points
    warp: Warp
    columns: tuple[Rank, ...]
    rows: tuple[Rank, ...]
    curves: dict[Edge, Points]
    middle: int  # the central row
    rail: int  # the column before the railway
    river: int  # the row before the river

    def rank(self, edge: Edge) -> Rank:
        """Return the rank of the line that an edge lies on."""
        return self.columns[edge.i] if edge.axis == 0 else self.rows[edge.j]

    def path(self, axis: int, between: int, wobble: Points) -> Points:
        """Return a curve that runs midway between line ``between`` and the next, all the way."""
        here, along = (self.u, self.v) if axis == 0 else (self.v, self.u)
        t = np.arange(along[0], along[-1], _VERTEX_M)
        swing = wobble[0] * np.sin(t / 170 * 2 * np.pi) + wobble[1] * np.sin(t / 410 * 2 * np.pi)
        across = (here[between] + here[between + 1]) / 2 + swing
        uv = np.stack((across, t) if axis == 0 else (t, across), axis=1)
        return self.warp(uv)

    def block(self, i: int, j: int) -> Points:
        """Return the ring (n, 2) of the block between columns i, i+1 and rows j, j+1."""
        sides = (
            self.curves[Edge(1, i, j)],
            self.curves[Edge(0, i + 1, j)],
            self.curves[Edge(1, i, j + 1)][::-1],
            self.curves[Edge(0, i, j)][::-1],
        )
        return np.concatenate([side[:-1] for side in sides])


def make_lattice(frame: Frame, rng: np.random.Generator) -> Lattice:
    """Draw the lattice of a city that covers its frame with room to spare."""
    width, height = frame.extent
    turn = np.deg2rad(rng.uniform(6, 28) * rng.choice([-1, 1]) + 90 * rng.integers(2))
    c, s = np.cos(turn), np.sin(turn)
    u = _lines(0.5 * (width * abs(c) + height * abs(s)) + _MARGIN_M, rng)
    v = _lines(0.5 * (width * abs(s) + height * abs(c)) + _MARGIN_M, rng)
    warp = _make_warp(np.array([width, height]) / 2, np.array([[c, -s], [s, c]]), rng)
    motorway = int(np.argmin(np.abs(u - 0.2 * min(width, height) * rng.choice([-1, 1]))))
    side = 1 if u[motorway] < 0 else -1  # of the motorway, on which most of the city lies
    middle = int(np.argmin(np.abs(v)))
    from_motorway = (side * (i - motorway) for i in range(len(u)))
    columns = tuple(
        "motorway" if k % 40 == 0 else _COLUMNS.get(k % 7, "minor") for k in from_motorway
    )
    rows = tuple(_ROWS.get((j - middle) % 8, "minor") for j in range(len(v)))
    nodes = warp(np.stack(np.meshgrid(u, v, indexing="ij"), axis=-1))
    jitter = rng.normal(0, _JITTER_M, nodes.shape).clip(-2 * _JITTER_M, 2 * _JITTER_M)
    calm = np.array([rank == "motorway" for rank in columns])
    nodes += np.where(calm[:, None, None], 0.0, jitter)
    rail = int(np.clip(motorway + (2 if side > 0 else -3), 0, len(u) - 2))
    river = int(np.clip(middle + rng.choice([-4, -3, 2, 3]), 0, len(v) - 2))
    return Lattice(u, v, nodes, warp, columns, rows, _curves(nodes), middle, rail, river)


def _make_warp(centre: Points, turn: Points, rng: np.random.Generator) -> Warp:
    length = rng.uniform(480, 1100, 3)
    heading, push = rng.uniform(0, 2 * np.pi, (2, 3))
    waves = (2 * np.pi / length * np.stack((np.cos(heading), np.sin(heading)))).T
    size = _WAVE_SLOPE * length / (2 * np.pi)
    shifts = (size * np.stack((np.cos(push), np.sin(push)))).T
    return Warp(centre, turn, waves, rng.uniform(0, 2 * np.pi, 3), shifts)


def _lines(reach: float, rng: np.random.Generator) -> Points:
    count = int(reach / SPACING_M[0]) + 2
    steps = rng.uniform(*SPACING_M, (2, count))
    ahead, behind = np.cumsum(steps[0]), -np.cumsum(steps[1])
    ahead, behind = ahead[ahead < reach + SPACING_M[1]], behind[behind > -reach - SPACING_M[1]]
    return np.concatenate((behind[::-1], [0.0], ahead))


def _curves(nodes: Points) -> dict[Edge, Points]:
    """Return the curve of every edge: Catmull-Rom splines along the lines, ends exact."""
    curves: dict[Edge, Points] = {}
    columns, rows, _ = nodes.shape
    for i in range(columns):
        for j, curve in enumerate(spline(nodes[i])):
            curves[Edge(0, i, j)] = curve
    for j in range(rows):
        for i, curve in enumerate(spline(nodes[:, j])):
            curves[Edge(1, i, j)] = curve
    return curves


def spline(knots: Points) -> list[Points]:
    """Return one curve (n, 2) per gap between knots (k, 2), smooth across the knots."""
    tangent = np.gradient(knots, axis=0)
    return [
        hermite(knots[k], knots[k + 1], tangent[k], tangent[k + 1]) for k in range(len(knots) - 1)
    ]


def hermite(start: Points, end: Points, leave: Points, arrive: Points) -> Points:
    """Return a cubic (n, 2) between two points with given tangents, a vertex every few metres."""
    count = max(3, int(np.hypot(*(end - start)) / _VERTEX_M) + 1)
    t = np.linspace(0, 1, count)[:, None]
    curve = (
        (2 * t**3 - 3 * t**2 + 1) * start
        + (t**3 - 2 * t**2 + t) * leave
        + (3 * t**2 - 2 * t**3) * end
        + (t**3 - t**2) * arrive
    )
    curve[0], curve[-1] = start, end
    return curve
