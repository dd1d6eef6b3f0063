"""accelerate with FSDP2 on CPUs: it shards on GPUs alone."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from torch import distributed as dist

sys.path.append(str(Path(__file__).parents[2] / "examples"))


def fsdp_on_cpus(rank: int, port: int) -> None:
    """Let accelerate shard on CPUs, as it does on GPUs, over the ranks of the process group."""
    from fsdp_on_cpus import shard_on_cpus

    size = dist.get_world_size()
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shard_on_cpus()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def two_replicas() -> Any:
    """Return accelerate's configuration of two replicas of two ranks."""
    from accelerate import ParallelismConfig

    return ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
