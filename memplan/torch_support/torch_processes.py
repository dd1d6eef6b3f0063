"""Process groups, and DistributedDataParallel around a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch import nn


def default_store() -> dist.Store:
    """Return the store over which the processes of the default group have met."""
    return dist.distributed_c10d._get_default_store()


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """Return after how long a collective of the group fails."""
    return group._get_backend(device).options._timeout


def connects_processes(group: dist.ProcessGroup) -> bool:
    """Tell whether the group's processes are connected by gloo, for tensors on the CPU."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # NCCL alone
        return False
    return type(backend).__name__ == "ProcessGroupGloo"


def coalesced(group: dist.ProcessGroup | None) -> AbstractContextManager[Any]:
    """Return a context whose collectives of the group, all of one kind, run as one when it ends."""
    return dist.distributed_c10d._coalescing_manager(group)


def has_communication_hooks(module: nn.Module) -> bool:
    """Tell whether a DistributedDataParallel does something else with the gradients than sum them."""
    return bool(vars(module).get("_comm_hooks"))


def call_in_parallel(
    parallel: nn.Module, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Call a function as a DistributedDataParallel calls its module: buffers are sent before, gradients are
    averaged in backward."""
    around: Any = parallel
    arguments, keywords = around._pre_forward(*arguments, **keywords)
    return around._post_forward(function(*arguments, **keywords))
