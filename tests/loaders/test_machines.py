"""Ranks on two machines: each loads its own copy, and objects are sent between them.

Here a machine is a PID namespace with its own /proc: processes of two cannot attach to each other.
"""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

JOB = """
import json, os, sys
import torch.distributed as dist
from loaders import BatchLoader, RamTiles
from training.engine.distributed import on_rank_zero

dist.init_process_group("gloo")
stores, out = sys.argv[1:3], sys.argv[3]
tiles = RamTiles.load(stores[dist.get_rank()])
loader = BatchLoader(tiles, 3, crop=16, augment="d4", crops_per_tile=2, seed=1)
read = []
sent = on_rank_zero(lambda: read.append(1) or {"step": 7, "weights": [0.5] * 3})
found = {
    "pid": os.getpid(), "writer": tiles._stores is not None, "sum": int(tiles.image.sum()),
    "keys": [int(k) for batch in loader for k in batch.key], "steps": len(loader),
    "read": len(read), "sent": sent,
}
with open(f"{out}/{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def in_own_machine(command):
    """Return a command that runs in its own PID namespace."""
    apart = ["unshare", "--pid", "--fork", "--mount", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("no namespaces can be made here")
    return [*apart, *command]


@pytest.mark.slow
def test_ranks_on_two_machines_load_a_copy_each_and_share_the_epoch(store_path, tmp_path):
    script, port = tmp_path / "job.py", str(free_port())
    script.write_text(JOB)
    own = shutil.copytree(store_path, tmp_path / "other machine.zarr")
    job = [sys.executable, str(script), str(store_path), str(own), str(tmp_path)]
    ranks = []
    for rank in range(2):  # as torchrun --nnodes 2 --nproc-per-node 1 sets them on its two machines
        environment = {
            **os.environ,
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"},
            **{"RANK": str(rank), "GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": "2"},
            **{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        }
        command = in_own_machine(job)
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    ends = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["pid"] == second["pid"], "machines of their own count processes from 1"
    assert first["writer"]
    assert second["writer"], "the memory of another machine cannot be attached to"
    assert first["sum"] == second["sum"] > 0
    assert first["steps"] == second["steps"]
    assert not set(first["keys"]) & set(second["keys"])
    assert len(set(first["keys"]) | set(second["keys"])) == 64 // 6 * 6
    assert (first["read"], second["read"]) == (1, 0)
    assert first["sent"] == second["sent"] == {"step": 7, "weights": [0.5, 0.5, 0.5]}
