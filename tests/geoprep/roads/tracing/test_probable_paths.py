"""Test links along paths: they follow the probabilities, and end at the first road."""

import numpy as np
import pytest
import shapely
from helpers.roads import array_raster, degree_counts, drawn, network

from geoprep.roads.graph import degrees
from geoprep.roads.options import Tracing
from geoprep.roads.tracing.gaps import DeadEnds
from geoprep.roads.tracing.probable_paths import links_along_paths
from geoprep.roads.tracing.steps import trace

SHAPE = (200, 200)
BEFORE, AFTER = [(20, -60), (100, -60)], [(126, -86), (126, -170)]
TURN = np.radians(np.linspace(90, 0, 20))
BEND = np.column_stack([100 + 26 * np.cos(TURN), -86 + 26 * np.sin(TURN)])  # 41 m


def raster(*parts, kind="probability", pixel=1.0, noise=None):
    """Return a raster of lines, each with its value, 1 to 255; and of noise where there is none."""
    shape = tuple(round(side / pixel) for side in SHAPE)
    values = np.zeros(shape, np.uint8) if noise is None else noise
    for lines, value in parts:
        values = np.maximum(values, drawn(lines, shape, value=value, pixel=pixel))
    return array_raster(values, pixel_size_m=pixel, kind=kind)


def links(made, probabilities):
    """Return the candidate links of all dead ends of a network."""
    ends = DeadEnds.of(made, np.flatnonzero(degrees(made) == 1))
    return links_along_paths(made, ends, probabilities, Tracing(), 2.0)


@pytest.mark.parametrize("pixel", [0.5, 1.0])
def test_a_bent_gap_is_closed_along_the_bend(pixel):
    faint = raster(([BEFORE, AFTER], 250), ([BEND], 50), pixel=pixel)
    made = trace(faint)
    assert degree_counts(made) == {1: 2}
    drawn_line = shapely.LineString([*BEFORE, *BEND, *AFTER])
    assert shapely.hausdorff_distance(made.lines[0], drawn_line, densify=0.1) < 3
    assert degree_counts(trace(faint, Tracing(close_gaps=False))) == {1: 4}


def test_a_bent_gap_without_probabilities_is_left():
    assert degree_counts(trace(raster(([BEFORE, AFTER], 250)))) == {1: 4}
    elsewhere = [(100, -60), (150, -60)]  # past the end of the other road
    assert degree_counts(trace(raster(([BEFORE, AFTER], 250), ([elsewhere], 50)))) == {1: 4}


@pytest.mark.parametrize("stop", [100, 180])
def test_parallel_roads_with_noise_between_are_not_joined(stop):
    noise = np.random.default_rng(0).integers(30, 70, SHAPE).astype(np.uint8)
    parallel = [(20, -60), (100, -60)], [(20, -70), (stop, -70)]
    assert not len(links(network(*parallel), raster((parallel, 250), noise=noise)).end)
    across = [(120, -20), (120, -120)]  # the same noise leads to a road ahead
    roads = [*parallel[:1], across]
    assert len(links(network(*roads), raster((roads, 250), noise=noise)).end)


def test_links_end_at_the_first_road():
    rng = np.random.default_rng(1)
    noise = rng.integers(10, 70, SHAPE).astype(np.uint8)
    streets = [[(x, -20), (x + 30, -180)] for x in (60, 90, 120)]
    places = [(10 + 40 * (k % 4), -y) for k, y in enumerate(range(30, 170, 11))]
    ends = [[(x, y), (x + 15, y - 5)] for x, y in places]
    crossed = shapely.MultiLineString(streets).intersects(shapely.linestrings(ends))
    roads = [*streets, *(end for end, cut in zip(ends, crossed, strict=True) if not cut)]
    made = network(*roads)
    found = links(made, raster((roads, 250), noise=noise))
    assert len(found.end) > 5
    assert not shapely.crosses(found.line[:, None], made.lines).any()
    assert (shapely.distance(found.line, made.lines[found.edge]) < 1e-6).all()


@pytest.mark.parametrize("kind", ["mask", "speed"])
def test_masks_have_no_paths(kind):
    gap = raster(([BEFORE, AFTER], 25), kind=kind)
    for path_m in (0.0, 60.0):
        assert degree_counts(trace(gap, Tracing(path_m=path_m))) == {1: 4}
