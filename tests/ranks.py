"""Processes that train one model side by side, over gloo."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import memplan
import torch
from torch import distributed as dist

RANKS = 2


def ranks(
    run: Callable[..., Any], folder: Path, *arguments: Any, size: int = RANKS, timeout: float = 150
) -> list[Any]:
    """What each rank's run returns: a text where it raises, None where it ends without a word.

    timeout: of collectives, in seconds.
    """
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_rank, args=(run, rank, size, str(folder), timeout, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert not any(process.is_alive() for process in processes), "the ranks wait for each other"
    files = [folder / f"{rank}.pt" for rank in range(size)]
    return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


def _rank(
    run: Callable[..., Any], rank: int, size: int, folder: str, timeout: float, arguments: tuple[Any, ...]
) -> None:
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
