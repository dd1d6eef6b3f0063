"""Processes that train one model side by side, over gloo."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch

import memplan
import torch
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

RANKS = 2

_KEPT: list[Any] = []
"""Groups of which this process was the only rank. The reducer of DistributedDataParallel goes while Python's
lock is held; a group that goes with it waits for its thread, which may need the lock for the last tensors."""


@contextmanager
def alone(backends: str = "gloo") -> Iterator[None]:
    """Have a process group of which this process is the only rank."""
    dist.init_process_group(backends, store=HashStore(), rank=0, world_size=1)
    _KEPT.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def ranks(
    run: Callable[..., Any],
    folder: Path,
    *arguments: Any,
    size: int = RANKS,
    timeout: float = 150,
    limit: float = 200,
) -> list[Any]:
    """What each rank's run returns: a text where it raises, None where it ends without a word.

    timeout: of collectives, in seconds. limit: seconds after which ranks count as waiting for each other.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with patch.dict(os.environ, PYTHONPATH=str(Path(__file__).parent)):
        forkserver.ensure_running()  # Python 3.11's does not get sys.path
    environment = dict(os.environ)
    processes = [
        context.Process(target=_rank, args=(run, rank, size, str(folder), timeout, environment, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(limit)
    waiting = [process for process in processes if process.is_alive()]
    for process in waiting:
        process.kill()
    assert not waiting, "the ranks wait for each other"
    files = [folder / f"{rank}.pt" for rank in range(size)]
    return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


def _rank(
    run: Callable[..., Any],
    rank: int,
    size: int,
    folder: str,
    timeout: float,
    environment: dict[str, str],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.clear()  # the server's is as old as the server
    os.environ.update(environment)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        result = run(rank, *arguments)
    except memplan.MemplanError as error:
        result = str(error)
    except Exception:
        result = traceback.format_exc()
    torch.save(result, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
