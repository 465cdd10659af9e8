"""Available memory in control groups of both versions."""

import psutil
import pytest

from loaders.memory import available_memory

GIB = 1 << 30


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def group_v2(folder, limit, used, cache=0):
    write(folder / "memory.max", limit)
    write(folder / "memory.current", used)
    write(folder / "memory.stat", f"anon 5\ninactive_file {cache}\nactive_file 7")


def group_v1(folder, limit, used, cache=0):
    write(folder / "memory.limit_in_bytes", limit)
    write(folder / "memory.usage_in_bytes", used)
    write(folder / "memory.stat", f"cache 1\ninactive_file 3\ntotal_inactive_file {cache}")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    left = psutil.virtual_memory()._replace(available=64 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: left)


def test_without_control_groups_the_machine_limits(tmp_path):
    left = available_memory(tmp_path)
    assert (left.nbytes, left.limited_by) == (64 * GIB, "the machine")


def test_version_2_counts_what_is_used_and_gives_back_file_cache(tmp_path):
    write(tmp_path / "proc/self/cgroup", "0::/job/task")
    group_v2(tmp_path / "sys/fs/cgroup/job/task", 8 * GIB, 3 * GIB, cache=GIB)
    left = available_memory(tmp_path)
    assert left.nbytes == 6 * GIB
    assert "job/task" in left.limited_by


def test_the_tightest_group_around_the_process_counts(tmp_path):
    write(tmp_path / "proc/self/cgroup", "0::/job/task")
    group_v2(tmp_path / "sys/fs/cgroup/job/task", "max", 1 * GIB)
    group_v2(tmp_path / "sys/fs/cgroup/job", 4 * GIB, 3 * GIB)
    assert available_memory(tmp_path).nbytes == GIB


def test_version_1_in_a_container_reads_the_mount_where_the_path_is_the_hosts(tmp_path):
    write(tmp_path / "proc/self/cgroup", "3:cpuset:/docker/abc\n4:memory:/docker/abc\n0::/")
    group_v1(tmp_path / "sys/fs/cgroup/memory", 2 * GIB, GIB, cache=GIB // 2)
    left = available_memory(tmp_path)
    assert left.nbytes == GIB + GIB // 2
    assert left.limited_by.endswith("memory")


def test_a_group_over_its_limit_has_nothing_left_not_less(tmp_path):
    write(tmp_path / "proc/self/cgroup", "0::/")
    group_v2(tmp_path / "sys/fs/cgroup", GIB, 2 * GIB)
    assert available_memory(tmp_path).nbytes == 0


def test_this_machine_has_memory_left():
    assert available_memory().nbytes > 0
