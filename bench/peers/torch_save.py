"""Saves as many bytes as a checkpoint has, as PyTorch does: torch.save, and torch.distributed.checkpoint.async_save. Prints seconds.

    torch_save.py FOLDER BYTES
"""
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

folder, size = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(1)
# Parameters and two moments of a hundred matrices: random bits, which no file system makes smaller.
count = 100
state = {f"{kind}.{i}": torch.randn(size // (3 * count) // 4) for kind in ("param", "exp_avg", "exp_avg_sq") for i in range(count)}


def sync(path):
    for p in [path, *path.rglob("*")] if path.is_dir() else [path]:
        fd = os.open(p, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


begin = time.perf_counter()
torch.save(state, folder / "state.pt")
sync(folder / "state.pt")
saved = time.perf_counter() - begin
os.unlink(folder / "state.pt")

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")
dist.init_process_group("gloo", rank=0, world_size=1)
begin = time.perf_counter()
future = dcp.async_save(state, checkpoint_id=str(folder / "dcp"))
blocked = time.perf_counter() - begin
future.result()
sync(folder / "dcp")
asynchronous = time.perf_counter() - begin
print(json.dumps({"save": saved, "async_blocked": blocked, "async": asynchronous}))
