"""Test what is known of the processor."""

import os

import pytest
from helpers.forks import as_rank

from geoprep.cpus import instruction_sets, started_rank, usable_cpus

XEON = (
    "processor\t: 0\nflags\t\t: fpu sse avx2 avx512f avx512_vnni avx512_bf16 amx_bf16\nbugs : x\n"
)
LAPTOP = "processor\t: 0\nflags\t\t: fpu sse avx2\n"
GRAVITON = "processor : 0\nFeatures : fp asimd sve bf16\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (XEON, ("AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX_BF16")),
        (LAPTOP, ("AVX2",)),
        (GRAVITON, ("SVE", "BF16")),
        ("", ()),
    ],
)
def test_instruction_sets_are_read_from_the_kernel(cpuinfo, expected):
    assert instruction_sets(cpuinfo) == expected


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/pod", {"pod/cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/pod", {"pod/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3),
        ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "1"}, 8),
        ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("3:cpu:/x", {"cpu/cpu.cfs_quota_us": "210000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("3:memory:/", {"cpu.max": "50000 100000"}, 8),
    ],
)
def test_processors_are_those_of_the_quota_rounded_up(
    monkeypatch, tmp_path, group, files, expected
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in {
        "proc/self/cgroup": group,
        **{f"sys/fs/cgroup/{n}": t for n, t in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert usable_cpus(tmp_path) == expected


def test_a_process_is_a_rank_if_torch_could_join_it(monkeypatch):
    as_rank(monkeypatch, RANK=1, WORLD_SIZE=2)
    assert started_rank() == (1, 2, 0, 1)  # as the operator of Kubeflow starts it
    as_rank(monkeypatch, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2)
    assert started_rank() == (0, 1, 1, 2)
    monkeypatch.delenv("MASTER_PORT")
    assert started_rank() is None
