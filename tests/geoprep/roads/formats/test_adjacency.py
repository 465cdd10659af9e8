"""Adjacency dictionaries of road graphs, and JSON that holds something else."""

import json

import pytest
from helpers.roads import lengths

from geoprep.errors import SourceError
from geoprep.roads.formats import adjacency
from geoprep.roads.formats.adjacency import read_adjacency
from geoprep.roads.options import ScoreOptions
from geoprep.roads.scoring.pairs import pair_scenes
from geoprep.roads.scoring.scenes import score_scenes

# A road of 300 m to the east with a branch of 40 m to the south; rows grow to the south.
GRAPH = {
    (0, 0): [(0, 100)],
    (0, 100): [(0, 0), (0, 300), (40, 100)],
    (0, 300): [(0, 100)],
    (40, 100): [(0, 100)],
}


LISTS = {"nodes": [list(node) for node in GRAPH], "edges": [[0, 1], [1, 2], [1, 3], [3, 1]]}
TEXTS = {f"{row},{column}": others for (row, column), others in GRAPH.items()}


def written(folder, document, name="graph.json"):
    path = folder / name
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "document",
    [LISTS, TEXTS, {str(node): others for node, others in GRAPH.items()}],
    ids=["nodes and edges", "row,column", "(row, column)"],
)
def test_json_is_read(tmp_path, document):
    path = written(tmp_path, document)
    made = read_adjacency(path)
    assert lengths(made) == [40, 100, 200]
    assert made.nodes[:, 1].min() == -40
    assert made.crs is None
    assert lengths(read_adjacency(path, 0.5)) == [20, 50, 100]


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(adjacency, "MOST_BYTES", 10)
    with pytest.raises(SourceError, match="is larger than"):
        read_adjacency(written(tmp_path, TEXTS))


@pytest.mark.parametrize(
    "document",
    [
        [1],
        {"a": 1},
        {"0,0": [["a", "b"]]},
        {"0,0": [[0, 1, 2]]},
        {"0,0": [[0, 1e999]]},
        *({"nodes": [[0, 0]], "edges": [[0, end]]} for end in (7, -1)),
    ],
)
def test_other_json_is_refused(tmp_path, document):
    with pytest.raises(SourceError, match=r"graph\.json: "):
        read_adjacency(written(tmp_path, document))


def test_pickles_are_not_read(tmp_path):
    graph = written(tmp_path, TEXTS)
    (tmp_path / "graph.p").write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    with pytest.raises(SourceError, match=r"graph\.p: a pickle may run code.* to JSON"):
        pair_scenes(graph, tmp_path / "graph.p")


def test_adjacency_dictionaries_are_scored(tmp_path):
    (tmp_path / "truth").mkdir()
    (tmp_path / "proposal").mkdir()
    for name in ("region_8", "region_9"):
        written(tmp_path / "truth", LISTS, f"{name}.json")
        written(tmp_path / "proposal", TEXTS, f"{name}.json")
    scores = score_scenes(pair_scenes(tmp_path / "truth", tmp_path / "proposal"), ScoreOptions())
    assert [one.scene for one in scores] == ["region_8", "region_9"]
    assert all(one.apls.score == pytest.approx(1) for one in scores)
