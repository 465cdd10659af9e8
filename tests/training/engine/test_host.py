"""What the header says of the machine, and the allocator."""

import ctypes
import re

import pytest
import torch

from training.engine import host as machine
from training.engine import native
from training.engine.native import choose_engine, computes_bf16

LAPTOP = "processor\t: 0\nflags\t\t: fpu sse avx2\n"
TCMALLOC = "/usr/lib/libtcmalloc_minimal.so.4"
MAPS = f"7f0000-7f1000 r-xp 00000000 08:01 42 {TCMALLOC}\n"
GRAVITON = "processor : 0\nFeatures : fp asimd sve bf16\n"


def test_the_header_names_engine_device_instructions_and_threads(monkeypatch):
    monkeypatch.setattr(machine, "instruction_sets", lambda: ("AVX2", "AVX512_BF16"))
    engine = choose_engine("native", "cpu", "fp32", "off")
    rows = dict(machine.describe(engine))
    assert rows["engine"] == engine.reason
    assert rows["device"] == "cpu"
    assert rows["instructions"] == "AVX2, AVX512_BF16"
    assert rows["threads"].startswith(f"{torch.get_num_threads()} of ")
    assert re.fullmatch(rf"{re.escape(torch.__version__)}, oneDNN \d+\.\d+.*", rows["torch"])


@pytest.mark.parametrize(("cpuinfo", "computed"), [(GRAVITON, True), (LAPTOP, False), ("", False)])
def test_bf16_of_arm_is_found_and_used(monkeypatch, cpuinfo, computed):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(native.Path, "read_text", lambda path: cpuinfo)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 1)
    assert computes_bf16(torch.device("cpu")) is computed
    engine = choose_engine("native", "cpu", "auto", "off")
    assert engine.dtype == (torch.bfloat16 if computed else torch.float32)
    for precision, emulated in (("bf16", not computed), ("fp32", False)):
        rows = dict(machine.describe(choose_engine("native", "cpu", precision, "off")))
        assert ("emulated: `precision` auto" in rows["instructions"]) is emulated


@pytest.mark.parametrize(
    ("preload", "maps", "found"),
    [(TCMALLOC, MAPS, "tcmalloc"), (TCMALLOC, "", None), ("", MAPS, None)],
)
def test_a_preloaded_allocator_is_named_if_it_is_mapped(monkeypatch, preload, maps, found):
    monkeypatch.setenv("LD_PRELOAD", preload)
    monkeypatch.setattr(machine, "read_text", lambda path: maps)
    assert machine.preloaded_allocator() == found


def test_a_preloaded_allocator_is_not_changed(monkeypatch):
    monkeypatch.setattr(machine, "preloaded_allocator", lambda: "jemalloc")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: pytest.fail("touched the allocator"))
    assert machine.keep_memory() == "jemalloc, preloaded"


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc's allocator"
)
@pytest.mark.parametrize(
    ("given", "fill"), [(f"{256 << 20}", "fill()"), ("0, one_heap=True", "threaded()")]
)
def test_freed_memory_stays_with_the_process(python, given, fill):
    """Pages written once are not faulted in again: neither taken anew nor returned.

    Nor by another thread, where all share one heap.
    """
    code = (
        "import ctypes, resource, threading\n"
        "from training.engine.host import keep_memory\n"
        f"line = keep_memory({given})\n"
        "def fill():\n"
        "    block = ctypes.create_string_buffer(64 << 20)\n"
        "    ctypes.memset(block, 1, len(block))\n"
        "def threaded():\n"
        "    thread = threading.Thread(target=fill); thread.start(); thread.join()\n"
        f"{fill}\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        f"for _ in range(5): {fill}\n"
        "print(line, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, sep='|')\n"
    )
    line, faults = python("-c", code).stdout.strip().split("|")
    assert line.startswith("glibc, keeps freed memory")
    assert int(faults) < 1000  # given back and taken again: 5 x 16,384
