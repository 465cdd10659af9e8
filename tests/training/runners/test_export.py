"""A checkpoint becomes a file that gives the same answers, with and without this package."""

import contextlib
import io
import json
import os
import re
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.export_cases import FACTS, IMAGE
from helpers.forks import Command
from helpers.predict_cases import pixels, write_image
from helpers.stores import write_store
from helpers.tiny import normed

from geoprep.errors import UsageError
from training.checkpoint import Checkpoint, CheckpointError, save
from training.engine.native import computes_bf16
from training.evaluate import main as evaluate
from training.export import _training_tiles, main
from training.model.unet import ResNetUNet, SmallUNet, UpConv
from training.predict import main as predict
from training.runners import torch_file
from training.runners.export_record import ExportRecord
from training.runners.graph import folded
from training.runners.model_files import export_files, load_runner, open_model
from training.runners.model_options import ModelOptions
from training.runners.runner import NativeRunner

REPO = Path(__file__).resolve().parents[3]
MODEL = ("--model", "helpers.tiny:normed")
EXPORTS = {
    "fp32.pt2": ["--format", "fp32"],
    "bf16.pt2": ["--format", "bf16"],
    "fp32.onnx": ["--format", "onnx"],
    "bf16.xml": ["--format", "openvino"],
    "int8.xml": ["--format", "openvino", "--int8"],
}
INT8 = "int8.xml"


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(1)
    network = normed(3, 8).eval()
    network[1].running_mean.normal_(0, 0.3)
    network[1].running_var.uniform_(0.5, 2)
    return network


@pytest.fixture(scope="module")
def plain(network):
    return NativeRunner(network, FACTS, device=torch.device("cpu"), precision="fp32")


@pytest.fixture(scope="module")
def folder(network, tmp_path_factory):
    """A checkpoint, the store it might have been trained on, and soon a file per format."""
    folder = tmp_path_factory.mktemp("deploy")
    save(folder / "best.pt", Checkpoint(info=FACTS, model=network.state_dict()))
    write_store(folder / "tiny.zarr")
    return folder


def words_of(folder, name):
    """Return the arguments of an export to a form."""
    words = [folder / "best.pt", *MODEL, *EXPORTS[name], "--out", folder / name, "--overwrite"]
    if name == INT8:
        words += ["--calibrate", folder / "tiny.zarr", "--tiles", 12]
    return [str(word) for word in words]


@pytest.fixture(scope="module")
def int8_export(folder, python):
    """Export to INT8 in a process of its own; return the completed process."""
    code = f"from training.export import main; assert main({words_of(folder, INT8)}) == 0"
    paths = os.pathsep.join([str(REPO / "tests"), *sys.path])
    return python("-c", code, cwd=folder, env=os.environ | {"PYTHONPATH": paths})


@pytest.fixture(scope="module")
def printed():
    """Return what each export of this process printed."""
    return {}


@pytest.fixture(scope="module")
def export(folder, printed, request):
    """Return a function that exports once, and gives the file."""

    def make(name):
        if name == INT8:
            assert request.getfixturevalue("int8_export").returncode == 0
        if not (folder / name).exists():
            with contextlib.redirect_stdout(io.StringIO()) as out:
                assert main(words_of(folder, name)) == 0
            printed[name] = out.getvalue()
        return folder / name

    return make


def forms(*names):
    """Return parameters: the forms that take seconds to export are slow."""
    quick = ("fp32.pt2", "fp32.onnx")
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


def assert_close(found, wanted, name):
    """Compare the probabilities of a form with those of the checkpoint."""
    apart = np.abs(np.asarray(found) - np.asarray(wanted))
    most = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.005}[name[:4]]
    # INT8 clips the rare pixel beyond the range of its calibration.
    assert (apart.mean() if name.startswith("int8") else apart.max()) < most


@pytest.mark.parametrize("name", forms(*EXPORTS))
def test_every_format_gives_the_outputs_of_the_checkpoint(export, plain, name):
    runner, record = load_runner(export(name))
    for image in (IMAGE, IMAGE[:1, :, :32]):  # any number, any size
        found = runner(image.contiguous(memory_format=torch.channels_last))
        assert found.shape == (len(image), *image.shape[2:], 8)
        assert found.dtype == torch.float32
        assert_close(found, plain(image), name)
    assert record.info == replace(FACTS, stores=())
    assert record.precision in runner.description


def test_int8_is_calibrated_on_bytes_of_which_all_are_finite(folder):
    """A single NaN in the calibration of NNCF gives a model of zeros."""
    tiles = _training_tiles(str(folder / "tiny.zarr"), FACTS, 12)
    assert len(tiles) == 12
    assert {tile.dtype for tile in tiles} == {torch.uint8}


@pytest.mark.slow
def test_openvino_compiles_for_the_shapes_of_large_jobs(export):
    plain, _ = load_runner(export("int8.xml"))
    assert plain.for_pixels(1_000_000)[0] is plain
    fitted, _ = plain.for_pixels(10**9)
    assert fitted.for_pixels(0)[0] is fitted is plain.for_pixels(10**9)[0]
    assert fitted.at_once == min(torch.get_num_threads(), 4)
    assert fitted.identity == {"precision": "int8", "compiled": True}
    plain.compile_mode = "on"
    assert plain.for_pixels(0)[0] is fitted
    plain.compile_mode = "off"
    assert plain.for_pixels(10**12)[0] is plain
    images = [IMAGE, IMAGE.flip(0), IMAGE[:1], IMAGE[1:, :, :32], IMAGE[:, :, :, :32].flip(3)]
    images = [image.contiguous(memory_format=torch.channels_last) for image in images]
    with ThreadPoolExecutor(4) as pool:  # more than it asked for, in shapes of many kinds
        found = list(pool.map(fitted, images * 8))
    for image, answer in zip(images * 8, found, strict=True):
        torch.testing.assert_close(answer, plain(image), atol=0.01, rtol=0)


SIGNALLED = """
import gc, os, signal, sys
from pathlib import Path
import torch
from training.runners import openvino_file

runners = [openvino_file.read(Path(sys.argv[1]))[0] for _ in range(2)]
for runner in runners:
    runner(torch.zeros((1, 3, 64, 64), dtype=torch.uint8))
del runner
while runners:
    del runners[0]
    gc.collect()
signal.signal(signal.SIGINT, lambda *_: print("handled"))
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_signal_after_openvino_models_are_freed_does_not_end_the_process(export, forks, tmp_path):
    """With AMX, each core of OpenVINO leaves a stack for signals that may be freed."""
    words = ("-c", SIGNALLED, str(export("bf16.xml")))
    (done,) = forks.run(Command(words, str(tmp_path)))
    assert (done.returncode, done.stdout.strip()) == (0, "handled"), done.stderr


def documented(suffix):
    """Return the code of docs/reference/model-files.md for a format."""
    text = (REPO / "docs" / "reference" / "model-files.md").read_text()
    section = text[text.index(f"## {suffix}") :]
    return section.split("```python\n")[1].split("```")[0]


@pytest.mark.parametrize("name", forms("fp32.onnx", "fp32.pt2", INT8))
def test_the_documented_code_needs_no_package_of_ours(export, plain, tmp_path, python, name):
    suffix = name[name.rindex(".") :]
    np.save(tmp_path / "image.npy", np.ascontiguousarray(IMAGE.numpy()))
    for file in export_files(export(name)):
        (tmp_path / f"moscow{file.suffix}").write_bytes(file.read_bytes())
    missing = ["training", "geoprep", "loaders", *(["torch"] if suffix != ".pt2" else [])]
    code = f"import sys\nsys.modules |= dict.fromkeys({missing})\n{documented(suffix)}\n"
    code += "np.save('out.npy', probabilities); print(info['bands'], road.shape)"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"['red', 'green', 'blue'] {(*IMAGE.shape[:1], *IMAGE.shape[2:])}" in done.stdout
    assert_close(np.load(tmp_path / "out.npy"), plain(IMAGE), name)


@pytest.mark.parametrize("part", ["bias", "kernel", "record"])
def test_a_flipped_bit_in_an_onnx_file_is_found(export, tmp_path, part):
    import onnx

    data = bytearray(export("fp32.onnx").read_bytes())
    model = onnx.load_from_string(bytes(data))
    size = {"bias": 1, "kernel": 4}.get(part)
    tensors = [t for t in model.graph.initializer if len(t.dims) == size and len(t.raw_data) > 16]
    where = data.index(tensors[0].raw_data) + 6 if size else data.index(b'"threshold": 0.4') + 15
    data[where] ^= 1
    (tmp_path / "x.onnx").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"x\.onnx is damaged: its digest does not match"):
        load_runner(tmp_path / "x.onnx")


@pytest.mark.slow
def test_an_export_prints_no_warning_of_other_libraries(int8_export):
    assert int8_export.returncode == 0, int8_export.stderr
    assert int8_export.stderr == ""
    assert "arning" not in int8_export.stdout
    assert "compared with the checkpoint" in int8_export.stdout
    assert re.search(r"^done in \d+ s$", int8_export.stdout, re.M)


def test_an_onnx_file_has_the_oldest_version_that_its_operators_allow(export):
    import onnx

    file = onnx.load(export("fp32.onnx"))
    assert (file.ir_version, file.opset_import[0].version) == (8, 18)


@pytest.mark.parametrize("name", forms(*EXPORTS))
def test_files_contain_no_pickle_and_no_path(export, name):
    """Neither of training data nor of Python's packages, this project or the output."""
    file = export(name)
    data = file.read_bytes()
    if file.suffix == ".pt2":
        with zipfile.ZipFile(file) as archive:
            entries = [archive.read(entry) for entry in archive.namelist()]
        for entry in entries:  # what pickle and torch.save write begins so
            assert entry[:2] not in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")
        data = b"".join(entries)
    for path in (Path(torch.__file__).parent, REPO, file.parent, "secret.zarr"):
        assert str(path).encode() not in data


@pytest.mark.slow
def test_weights_of_a_bf16_file_take_two_bytes(tmp_path):
    middle = torch.nn.Conv2d(256, 256, 3, padding=1)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 256, 1), middle, torch.nn.Conv2d(256, 8, 1))
    record = ExportRecord(info=FACTS, precision="bfloat16", checkpoint="", versions={})
    torch_file.write(tmp_path / "bf16.pt2", network.eval(), record, [])
    weights = sum(p.numel() for p in network.parameters())
    assert 2 * weights < (tmp_path / "bf16.pt2").stat().st_size < 2.3 * weights


@pytest.mark.parametrize("kind", [ResNetUNet, SmallUNet])
def test_folding_keeps_the_function(kind):
    torch.manual_seed(0)
    network = kind(3, 2).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.bias.data.normal_(0, 0.1)
    image = torch.randn(1, 3, 64, 96)
    result = folded(network)
    assert not any(isinstance(m, torch.nn.BatchNorm2d | UpConv) for m in result.modules())
    with torch.no_grad():
        torch.testing.assert_close(result(image), network(image), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", forms("fp32.pt2", "fp32.onnx", "bf16.xml"))
def test_damaged_file_is_refused(export, tmp_path, name):
    file = tmp_path / name
    data = bytearray(export(name).read_bytes())
    file.write_bytes(data[: len(data) // 2])
    if name.endswith(".xml"):
        (tmp_path / "bf16.bin").write_bytes(export(name).with_suffix(".bin").read_bytes())
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        load_runner(file)


@pytest.mark.slow
def test_a_flipped_weight_is_found(export, tmp_path):
    weights = export("bf16.xml").with_suffix(".bin").read_bytes()
    (tmp_path / "bf16.xml").write_bytes(export("bf16.xml").read_bytes())
    (tmp_path / "bf16.bin").write_bytes(bytes([weights[0] ^ 1]) + weights[1:])
    with pytest.raises(CheckpointError, match=r"bf16\.bin is damaged or belongs to another file"):
        load_runner(tmp_path / "bf16.xml")
    with zipfile.ZipFile(export("fp32.pt2")) as archive:
        where = next(e for e in archive.infolist() if e.filename.endswith("weight_0"))
    data = bytearray(export("fp32.pt2").read_bytes())
    data[where.header_offset + 200] ^= 1
    (tmp_path / "fp32.pt2").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"fp32\.pt2 is damaged"):
        load_runner(tmp_path / "fp32.pt2")


@pytest.fixture
def cuda_sessions(monkeypatch):
    """ONNX Runtime lists CUDA; return the providers of every session, which computes on the CPU."""
    import onnxruntime

    made = onnxruntime.InferenceSession
    asked = []

    def session(data, options, providers):
        asked.append(providers)
        result = made(data, options, providers=["CPUExecutionProvider"])
        names = [p if isinstance(p, str) else p[0] for p in providers]
        monkeypatch.setattr(result, "get_providers", lambda: names)
        return result

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    return asked


def test_onnx_file_computes_on_cuda_where_it_is_listed(export, command, tmp_path, cuda_sessions):
    file, image = export("fp32.onnx"), write_image(tmp_path / "scene.tif", pixels(70, 200))
    words = (file, image, "--gsd", "image", "--quiet", "--window", 64, "--overlap", 16)
    command(predict, *words, "--out", tmp_path / "cpu")
    said = command(predict, *words, "--out", tmp_path / "cuda", "--device", "cuda:1").out
    assert "float32 on cuda:1, ONNX Runtime" in said
    cpu, cuda = cuda_sessions[-2:]  # exporting opens the file too
    assert cpu == ["CPUExecutionProvider"]
    assert cuda[0][0] == "CUDAExecutionProvider"
    assert cuda[0][1]["device_id"] == "1"
    one, other = ((tmp_path / name / "scene.tif").read_bytes() for name in ("cpu", "cuda"))
    assert one == other


def test_devices_and_options_that_a_file_lacks_are_refused(export, cuda_sessions, monkeypatch):
    import onnxruntime

    file = export("fp32.onnx")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(UsageError, match="Install onnxruntime-gpu in place of onnxruntime, or use"):
        open_model(ModelOptions(checkpoint=file, device="cuda"))
    with pytest.raises(UsageError, match=r"does not compute on it\. Use cpu or cuda"):
        open_model(ModelOptions(checkpoint=file, device="xpu"))
    with pytest.raises(UsageError, match="names 2 devices"):
        open_model(ModelOptions(checkpoint=file, device="cuda:0,1"))
    for name in ("x.xml", "x.pt2", "x.ipex"):
        with pytest.raises(UsageError, match=f"{name} does not compute on it"):
            open_model(ModelOptions(checkpoint=Path(name), device="cuda"))
    with pytest.raises(UsageError, match="`precision` bf16 applies to checkpoints only"):
        open_model(ModelOptions(checkpoint=file, precision="bf16"))


@pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider'")
def test_cuda_that_does_not_start_is_refused(export, monkeypatch):
    """ONNX Runtime computes on the CPU instead."""
    file = export("fp32.onnx")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(UsageError, match="cannot start it"):
        open_model(ModelOptions(checkpoint=file, device="cuda"))


def test_onnx_file_of_another_program_is_refused(export, tmp_path):
    import onnx

    model = onnx.load(str(export("fp32.onnx")))
    del model.metadata_props[:]
    onnx.save(model, str(tmp_path / "other.onnx"))
    with pytest.raises(CheckpointError, match="has no record of what it was trained for"):
        load_runner(tmp_path / "other.onnx")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "openvino", "--int8", "--out", "x.xml"), "with --calibrate"),
        (("--format", "onnx", "--out", "x.pt2"), ".onnx; .pt2 belongs to --format fp32 or bf16"),
        (("--out", "x.xml"), "end in .pt2; .xml belongs to --format openvino"),
        (("--out", "x.tif"), "end in .pt2\n"),
        (("--format", "ipex-bf16", "--int8", "--out", "x.ipex"), "--format ipex-int8"),
        (("--format", "onnx", "--int8", "--out", "x.onnx"), "--format openvino"),
        (("--format", "fp32", "--out", "nowhere/x.pt2"), "does not exist"),
        (("--format", "fp32"), "--out is missing"),
        (("--format", "fp32", "--out", "there.pt2"), "--overwrite"),
    ],
)
def test_contradicting_options_are_refused(folder, command, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.pt2").write_text("precious")
    assert message in command(main, folder / "best.pt", *MODEL, *words, status=2).err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_files_that_are_not_checkpoints_are_refused_with_advice(folder, command, tmp_path):
    for name in ("x.xml", "x.bin"):
        (tmp_path / name).write_bytes(b"<net>")
    checkpoint, store, network = folder / "best.pt", folder / "tiny.zarr", tmp_path / "x.xml"
    for main_of, words, says in (
        (main, (network, "--out", tmp_path / "x.pt2"), "is already exported: name the checkpoint"),
        (evaluate, (tmp_path / "x.bin", store), f"name {network} instead"),
        (evaluate, (checkpoint,), "give a model and a store"),
        (evaluate, ("--compare", checkpoint, "--on", store), "--compare needs at least two models"),
    ):
        assert says in command(main_of, *words, status=2).err


@pytest.mark.parametrize(("package", "suffix"), [("onnx", "onnx"), ("openvino", "xml")])
def test_missing_package_is_one_line(folder, command, tmp_path, monkeypatch, package, suffix):
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    words = ("--format", package, "--out", f"x.{suffix}", "--calibrate", folder / "tiny.zarr")
    error = command(main, folder / "best.pt", *MODEL, *words, status=2).err
    assert "pip install geoprep[deploy]" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_missing_extension_is_reported_in_one_line(folder, command, tmp_path, monkeypatch):
    monkeypatch.setattr("training.engine.ipex.state", lambda: "is not installed")
    words = ("--format", "ipex-int8", "--calibrate", folder / "tiny.zarr")
    line = (folder / "best.pt", *MODEL, *words, "--out", tmp_path / "x.ipex")
    said = command(main, *line, status=2).err
    assert "intel-extension-for-pytorch is not installed" in said
    assert not (tmp_path / "x.ipex").exists()
    (tmp_path / "x.ipex").write_bytes(b"")
    with pytest.raises(UsageError, match="intel-extension-for-pytorch is not installed"):
        load_runner(tmp_path / "x.ipex")


def test_export_prints_size_runner_and_agreement(export, printed):
    export("fp32.onnx")
    said = printed["fp32.onnx"]
    assert "MB, float32 on cpu, ONNX Runtime" in said
    assert "4 images of noise" in said
    assert "IoU of the road masks 1.000" in said


def test_model_files_are_compared_on_a_store(folder, export, command):
    files = [folder / "best.pt", export("fp32.onnx"), export("bf16.xml")]
    words = ["--compare", *files, "--on", folder / "tiny.zarr", *MODEL]
    words += ["--precision", "fp32", "--device", "cpu", "--threads", 1, "--batch-size", 2]
    said = command(evaluate, *words).out
    assert "bfloat16 on cpu, OpenVINO" in said
    native, whole, rounded = json.loads(command(evaluate, *words, "--json").out)
    assert native["drop"] == {"road_iou": 0, "bin_iou": 0}
    assert abs(whole["drop"]["road_iou"]) < 1e-4
    lost = abs(rounded["drop"]["road_iou"])
    assert lost < 0.05
    if computes_bf16(torch.device("cpu")):
        assert lost > 0
    else:
        assert lost < 1e-4, "computed in fp32, as the file before"
    assert whole["nbytes"] == files[1].stat().st_size
    assert rounded["nbytes"] == sum(file.stat().st_size for file in export_files(files[2]))
    assert all(row["mpx_per_second"] > 0 for row in (native, whole, rounded))


def test_comparing_needs_a_store_and_forms_of_one_model(folder, export, command, tmp_path):
    words = ["--compare", folder / "best.pt", export("fp32.onnx"), *MODEL]
    assert "a store in --on" in command(evaluate, *words, status=2).err
    other = replace(FACTS, class_mph=tuple(mph + 1 for mph in FACTS.class_mph))
    weights = normed(3, 8).state_dict()
    save(tmp_path / "other.pt", Checkpoint(info=other, model=weights))
    words = ["--compare", export("fp32.onnx"), tmp_path / "other.pt", "--on", folder / "tiny.zarr"]
    assert "differ in class_mph" in command(evaluate, *words, *MODEL, status=2).err
