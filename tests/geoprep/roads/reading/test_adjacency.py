"""Adjacency dictionaries of road graphs, and pickles that hold something else."""

import collections
import json
import os
import pickle
import struct

import numpy as np
import pytest
from helpers.roads import lengths

from geoprep.errors import SourceError
from geoprep.roads.options import ScoreOptions
from geoprep.roads.reading import adjacency
from geoprep.roads.reading.adjacency import read_adjacency
from geoprep.roads.scoring.pairs import pair_scenes
from geoprep.roads.scoring.scenes import score_scenes

# A road of 300 m to the east with a branch of 40 m to the south; rows grow to the south.
GRAPH = {
    (0, 0): [(0, 100)],
    (0, 100): [(0, 0), (0, 300), (40, 100)],
    (0, 300): [(0, 100)],
    (40, 100): [(0, 100)],
}


TEXTS = {f"{row},{column}": others for (row, column), others in GRAPH.items()}


def written(tmp_path, data, name="graph.p"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("number", [int, float, np.int64, np.float32, np.uint16])
def test_pickles_of_any_protocol_and_number_are_read(tmp_path, protocol, number):
    graph = {
        tuple(map(number, node)): [tuple(map(number, other)) for other in others]
        for node, others in GRAPH.items()
    }
    made = read_adjacency(written(tmp_path, pickle.dumps(graph, protocol)))
    assert lengths(made) == [40, 100, 200]
    assert made.nodes[:, 1].min() == -40
    assert made.crs is None


def test_a_default_dictionary_and_a_pixel_size(tmp_path):
    graph = collections.defaultdict(list, GRAPH)
    made = read_adjacency(written(tmp_path, pickle.dumps(graph)), 0.5)
    assert lengths(made) == [20, 50, 100]


@pytest.mark.parametrize(
    "document",
    [
        {"nodes": [list(node) for node in GRAPH], "edges": [[0, 1], [1, 2], [1, 3], [3, 1]]},
        TEXTS,
        {str(node): others for node, others in GRAPH.items()},
    ],
    ids=["nodes and edges", "row,column", "(row, column)"],
)
def test_json_is_read(tmp_path, document):
    assert lengths(read_adjacency(written(tmp_path, document, "graph.json"))) == [40, 100, 200]


@pytest.mark.parametrize("name", ["gt", "prop"])
def test_the_published_pickles_of_sat2graph_are_read(shared_data, name):
    pair = shared_data / "sat2graph_pair"
    found, expected = (read_adjacency(pair / f"{name}.{suffix}") for suffix in ("p", "json"))
    assert sorted(found.length_m) == pytest.approx(sorted(expected.length_m))


def test_a_pickle_of_python_2_with_raw_bytes_is_read(tmp_path):
    """As Sat2Graph published them: protocol 0, numbers of NumPy as bytes beyond ASCII."""
    head = (
        b"(dp0\n(cnumpy.core.multiarray\nscalar\np1\n(cnumpy\ndtype\np2\n(S'i8'\np3\nI0\nI1\ntRp5\n"
    )
    state = b"(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"

    def number(value, first=False):
        raw = struct.pack("<q", value).replace(b"\n", b"\\n")
        return (b"" if first else b"g1\n(g5\n") + b"S'" + raw + b"'\ntR"

    data = head + state + number(0xE9, first=True) + number(0xFF) + b"t(l("
    data += number(0xE9) + number(300) + b"tas."
    made = read_adjacency(written(tmp_path, data))
    assert lengths(made) == [300 - 0xFF]


class Hostile:
    """Runs a command when Python's unpickler reads it."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


def nested(depth):
    """Return a pickle whose key is a tuple of tuples of ..."""
    return b"\x80\x02}K\x01" + b"K\x01\x86" * depth + b"]s."


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Hostile(os.system, "touch hacked")),
        pickle.dumps({(0, 0): Hostile(os.system, "touch hacked")}),
        pickle.dumps(Hostile(eval, "open('hacked', 'w')")),
        pickle.dumps(Hostile(getattr, "", "join")),
        pickle.dumps(Hostile(__import__, "os")),
        pickle.dumps(np.zeros(3)),
        pickle.dumps({(0, 0): {(0, 1)}}),
        pickle.dumps({(0, 0): [(0, [1])]}),
        pickle.dumps({(0, 0): [("a", "b")]}),
        pickle.dumps({(0, 0): [(0, 1, 2)]}),
        pickle.dumps({(0, 0): [(0, 10**400)]}),
        pickle.dumps({(0, 0): [(0, float("nan"))]}),
        pickle.dumps([1, 2]),
        pickle.dumps(GRAPH)[:-9],
        b"",
        b"not a pickle",
        nested(300_000),
        b"\x80\x04\x96" + struct.pack("<Q", 1 << 40) + b".",  # a bytearray of a terabyte
        b"cos\nsystem\n(S'touch hacked'\ntR.",
        b"\x80\x02cbuiltins\nlist\nK\x05\x85R.",
        b"0", b"t.", b"s.", b"a.", b"R.", b"b.", b"]e.", b"h\x05.",
    ],
)  # fmt: skip
def test_hostile_and_damaged_pickles_are_refused(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, data)
    with pytest.raises(SourceError, match=r"graph\.p: "):
        read_adjacency(path)
    assert [file.name for file in tmp_path.iterdir()] == ["graph.p"]


def test_a_memo_entry_of_four_billion_needs_no_memory(tmp_path):
    made = read_adjacency(written(tmp_path, b"\x80\x02}r\xff\xff\xff\xff."))
    assert len(made.ends) == 0


def test_shared_lists_do_not_multiply_without_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(adjacency, "MOST_NEIGHBOURS", 10_000)
    shared = [(1, column) for column in range(200)]
    data = pickle.dumps({(0, column): shared for column in range(200)})
    with pytest.raises(SourceError, match="more than 10000 neighbours"):
        read_adjacency(written(tmp_path, data))


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(adjacency, "MOST_BYTES", 10)
    with pytest.raises(SourceError, match="is larger than"):
        read_adjacency(written(tmp_path, pickle.dumps(GRAPH)))


@pytest.mark.parametrize(
    "document", [[1], {"a": 1}, *({"nodes": [[0, 0]], "edges": [[0, end]]} for end in (7, -1))]
)
def test_other_json_is_refused(tmp_path, document):
    with pytest.raises(SourceError, match=r"graph\.json: "):
        read_adjacency(written(tmp_path, document, "graph.json"))


def test_adjacency_dictionaries_are_scored(tmp_path):
    (tmp_path / "truth").mkdir()
    (tmp_path / "proposal").mkdir()
    for name in ("region_8", "region_9"):
        written(tmp_path / "truth", pickle.dumps(GRAPH), f"{name}.p")
        written(tmp_path / "proposal", TEXTS, f"{name}.json")
    scores = score_scenes(pair_scenes(tmp_path / "truth", tmp_path / "proposal"), ScoreOptions())
    assert [one.scene for one in scores] == ["region_8", "region_9"]
    assert all(one.apls.score == pytest.approx(1) for one in scores)
