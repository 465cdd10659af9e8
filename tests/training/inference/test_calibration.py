"""Layers that suffer from INT8 are found and left in float, in every format."""

from dataclasses import replace
from functools import partial

import onnx
import pytest
import torch
from helpers.export_cases import FACTS, IMAGE
from helpers.stores import write_store
from helpers.tiny import build
from torch import nn

from geoprep.errors import UsageError
from training.checkpoint import Checkpoint, save
from training.export import main
from training.inference import onnx_file, openvino_file
from training.inference.calibration import layers_to_keep, named_layers
from training.inference.export_record import ExportRecord
from training.inference.graph import exported, inference_module
from training.inference.model_files import load_runner
from training.inference.runner import NativeRunner
from training.inference.torch_file import quantised
from training.model.unet import DecoderStep

TILES = [IMAGE[k : k + 1] for k in range(3)]
WORST = "network.2"
KEPT = ("network.step.up",)


@pytest.fixture(scope="module")
def skewed():
    """A network whose middle layer sees one channel a thousand times as large as the others.

    It computes what it would without that, but one scale for all of its inputs leaves the others
    nothing.
    """
    torch.manual_seed(3)
    network = build(3, 8).eval()
    with torch.no_grad():
        network[0].weight[0] *= 1000
        network[0].bias[0] *= 1000
        network[2].weight[:, 0] /= 1000
        network[4].weight *= 8
    return network


class Doubled(nn.Module):
    """What a decoder of the ResNet34-UNet does: doubling, which each format writes its own way."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.step = DecoderStep(8, 0, 8)
        nn.init.kaiming_normal_(self.step.up.weight)
        self.head = nn.Conv2d(8, 8, 1)

    def forward(self, image):
        return self.head(self.step(torch.relu(self.down(image)), None))


def record(**values):
    return ExportRecord(info=FACTS, precision="int8", checkpoint="", versions={}, **values)


def test_the_layer_that_int8_harms_most_is_kept(skewed):
    everything, cost = layers_to_keep(skewed, FACTS, TILES, bound=0)
    assert everything[0] == WORST
    assert len(everything) == 3
    assert cost == 0  # nothing is rounded any more
    _, without = layers_to_keep(skewed, FACTS, TILES, bound=1)
    kept, cost = layers_to_keep(skewed, FACTS, TILES, bound=without / 2)
    assert kept == (WORST,)
    assert 0 < cost <= without / 2


def test_simulated_int8_differs_as_much_as_int8(skewed, tmp_path):
    none, imitated = layers_to_keep(skewed, FACTS, TILES, bound=1)
    assert none == ()
    onnx_file.write(tmp_path / "x.onnx", skewed, record(), TILES)
    runner, _ = load_runner(tmp_path / "x.onnx")
    plain = NativeRunner(skewed, FACTS, device=torch.device("cpu"), precision="fp32")
    found = sum(float((runner(t) - plain(t)).abs().mean()) for t in TILES) / len(TILES)
    assert imitated == pytest.approx(found, rel=0.25)


def test_names_select_layers_and_the_layers_of_modules():
    network = Doubled().eval()
    assert named_layers(network, FACTS, ["network.head", "network.step"]) == (
        "network.step.up",
        "network.head",
    )
    with pytest.raises(UsageError, match=r"hea: no such layer\. The layers are network\.down, "):
        named_layers(network, FACTS, ["network.hea"])


def test_onnx_leaves_kept_layers_in_float(tmp_path):
    onnx_file.write(tmp_path / "x.onnx", Doubled().eval(), record(kept=KEPT), TILES)
    nodes = onnx.load(str(tmp_path / "x.onnx")).graph.node
    makers = {name: node for node in nodes for name in node.output}
    layers = [node for node in nodes if node.op_type in ("Conv", "ConvTranspose")]
    whole = [n for n in layers if n.input[1] in makers and makers[n.input[1]].op_type[:4] == "Dequ"]
    assert (len(layers), len(whole)) == (3, 2)


def test_openvino_leaves_kept_layers_in_float(tmp_path):
    openvino_file.write(tmp_path / "x.xml", Doubled().eval(), record(kept=KEPT), TILES)
    import openvino

    model = openvino.Core().read_model(str(tmp_path / "x.xml"))
    layers = [node for node in model.get_ops() if "Convolution" in node.get_type_name()]
    whole = [n for n in layers if "i8" in kinds(n.input_value(1).get_node())]
    assert (len(layers), len(whole)) == (3, 2)


def kinds(node, depth=4):
    """Return the dtypes of what a kernel is computed from."""
    found = {node.get_output_element_type(0).get_type_name()}
    if depth:
        for value in node.input_values():
            found |= kinds(value.get_node(), depth - 1)
    return found


def test_torch_leaves_kept_layers_in_float():
    program = exported(inference_module(Doubled().eval(), FACTS, "phased"), FACTS)
    graph = quantised(program, TILES, KEPT).graph
    kernels = [n for n in graph.nodes if "dequantize_per_channel" in str(n.target)]
    assert len(kernels) == 2


@pytest.fixture
def export(skewed, tmp_path, command):
    """Return a function that exports it to ONNX, and returns what is printed."""
    info = replace(FACTS, model="helpers.tiny:build")
    save(tmp_path / "best.pt", Checkpoint(info=info, model=skewed.state_dict()))
    usual = [tmp_path / "best.pt", "--model", info.model, "--format", "onnx", "--tiles", 8]
    usual += ["--calibrate", write_store(tmp_path / "tiny.zarr"), "--out", tmp_path / "x.onnx"]
    return partial(command, main, *usual)


@pytest.mark.parametrize(
    ("named", "kept", "says"),
    [
        ("network.4,network.0", ("network.0", "network.4"), "network.0, network.4 (as named)"),
        ("auto", (WORST,), f"{WORST} (probabilities differ by 0.0"),
    ],
)
def test_export_keeps_named_or_found_layers(export, tmp_path, named, kept, says):
    assert f"left in float: {says}" in export("--int8", "--keep-float", named).out
    assert load_runner(tmp_path / "x.onnx")[1].kept == kept


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--keep-float", "auto"), "--keep-float needs INT8"),
        (("--int8", "--keep-float", "tail"), "tail: no such layer"),
    ],
)
def test_keeping_an_unknown_layer_is_refused(export, tmp_path, words, message):
    assert message in export(*words, status=2).err
    assert not (tmp_path / "x.onnx").exists()
