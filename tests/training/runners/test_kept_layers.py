"""Layers that are named stay in float where OpenVINO computes the others in INT8."""

from dataclasses import replace

import pytest
import torch
from helpers.export_cases import FACTS, IMAGE
from helpers.stores import write_store
from helpers.tiny import build
from torch import nn

from geoprep.errors import UsageError
from training.checkpoint import Checkpoint, save
from training.export import main
from training.model.unet import DecoderStep
from training.runners import openvino_file
from training.runners.export_record import ExportRecord
from training.runners.graph import named_layers


class Doubled(nn.Module):
    """What a decoder of the ResNet34-UNet does: doubling, with an own kind of layer."""

    def __init__(self, bands=3, channels=8):
        super().__init__()
        self.down = nn.Conv2d(bands, 8, 3, stride=2, padding=1)
        self.step = DecoderStep(8, 0, 8)
        nn.init.kaiming_normal_(self.step.up.weight)
        self.head = nn.Conv2d(8, channels, 1)

    def forward(self, image):
        return self.head(self.step(torch.relu(self.down(image)), None))


def test_names_select_layers_and_the_layers_of_modules():
    network = Doubled().eval()
    found = named_layers(network, FACTS, ["network.head", "network.step"])
    assert found == ("network.step.up", "network.head")
    with pytest.raises(UsageError, match=r"hea: no such layer\. The layers are network\.down, "):
        named_layers(network, FACTS, ["network.hea"])


def kinds(node, depth=4):
    """Return the dtypes of what a kernel is computed from."""
    found = {node.get_output_element_type(0).get_type_name()}
    if depth:
        for value in node.input_values():
            found |= kinds(value.get_node(), depth - 1)
    return found


def test_openvino_leaves_kept_layers_in_float(tmp_path):
    import openvino

    record = ExportRecord(
        info=FACTS, precision="int8", checkpoint="", versions={}, kept=("network.step.up",)
    )
    tiles = [IMAGE[k : k + 1] for k in range(3)]
    openvino_file.write(tmp_path / "x.xml", Doubled().eval(), record, tiles)
    model = openvino.Core().read_model(str(tmp_path / "x.xml"))
    layers = [node for node in model.get_ops() if "Convolution" in node.get_type_name()]
    whole = [n for n in layers if "i8" in kinds(n.input_value(1).get_node())]
    assert (len(layers), len(whole)) == (3, 2)


def test_an_export_names_the_layers_in_float_and_refuses_unknown_ones(tmp_path, command):
    info = replace(FACTS, model="helpers.tiny:build")
    save(tmp_path / "best.pt", Checkpoint(info=info, model=build(3, 8).state_dict()))
    words = [tmp_path / "best.pt", "--model", info.model, "--format", "openvino", "--int8"]
    words += ["--calibrate", write_store(tmp_path / "tiny.zarr"), "--tiles", 4]
    words += ["--out", tmp_path / "x.xml"]
    assert "tail: no such layer" in command(main, *words, "--keep-float", "tail", status=2).err
    assert not (tmp_path / "x.xml").exists()
    said = command(main, *words, "--keep-float", "network.4,network.0").out
    assert "left in float: network.0, network.4\n" in said
