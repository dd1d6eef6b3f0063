"""Parameters and buffers that are DTensors, in a module that computes with them as such.

A plan has what lies in this process alone: the local tensor of each. In the trace the module finds DTensors
around these, so that what it computes with them, collectives included, is in the program:

    plan     local tensors ─┬▶ forward, which makes DTensors of them ─▶ loss
    autograd                └◀ gradients, local too

The same are shares of sharded training. A plan may offload a local tensor like any other: between iterations
the module, the optimizer, `state_dict()` and checkpoints know the DTensor, and the first use of its values
has the local tensor back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...program.program import Value
from ...torch_support.torch_collectives import LOCAL_OF_DTENSOR, local_shape_and_offset, noticing_reads
from ..storage.host_access import at_home_value
from ..storage.lazy_init import filled_with, unmade, zeros
from ..storage.offloaded import Fill, bring_back, give_up, replacing

_Offloaded = noticing_reads("OffloadedDTensor", lambda local: bring_back([local]), replacing)


def local_tensor(tensor: Tensor) -> Tensor:
    """Return what of a tensor lies in this process: of a DTensor its local tensor, of any other itself.

    It stays in the memory in which it is.
    """
    return LOCAL_OF_DTENSOR.__get__(tensor) if isinstance(tensor, DTensor) else tensor


def planned_local(tensor: Tensor) -> Tensor:
    """Return what of a tensor lies in this process; a plan may offload it from now on."""
    if isinstance(tensor, DTensor):
        tensor.__class__ = _Offloaded  # before each iteration: the first read takes the class off
    return local_tensor(tensor)


def give_up_local(tensor: Tensor, refuse: Callable[[], NoReturn]) -> None:
    """Refuse every use of the values of a DTensor's local tensor, until others have replaced them."""
    local = planned_local(tensor)
    give_up(
        local,
        Value(
            storage=0,
            shape=tuple(local.shape),
            strides=local.stride(),
            offset=0,
            dtype=local.dtype,
            device=local.device,
        ),
        refuse,
    )


def around(local: Tensor, like: Tensor) -> Tensor:
    """Return a DTensor around a local tensor, placed as another one is; if that is none, the tensor itself.

    Gradients of the DTensor are gradients of the local tensor, in the placement of the DTensor.
    """
    if not isinstance(like, DTensor):
        return local
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def sharded_dimensions(tensor: Tensor) -> list[int]:
    """Return the dimensions of its mesh in which a DTensor is sharded; none of an ordinary tensor."""
    if not isinstance(tensor, DTensor):
        return []
    mesh, kinds = tensor.device_mesh, tensor.placements
    sharded = [n for n, one in enumerate(kinds) if not one.is_replicate() and not one.is_partial()]
    return [n for n in sharded if mesh.size(n) > 1]


def part_of(tensor: DTensor) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return the shape of the local tensor, where in the whole it begins, and whether this rank is the first
    in the mesh that has it.
    """
    mesh, sharded = tensor.device_mesh, sharded_dimensions(tensor)
    place = mesh.get_coordinate() or ()
    return *local_shape_and_offset(tensor), not any(x for n, x in enumerate(place) if n not in sharded)


def local_state(weight: DTensor, dtype: torch.dtype, *, copied: bool = False) -> DTensor:
    """Return a new optimizer state of a weight, a DTensor too: zero, or a copy of it, as a master is.

    It takes no memory until it is used, wherever a plan then has it.
    """
    own = local_tensor(weight)
    form = Value(
        storage=0, shape=tuple(own.shape), strides=own.stride(), offset=0, dtype=dtype, device=own.device
    )
    fill: Fill = partial(_copied, own, form) if copied else zeros
    # One element, expanded: a form without memory, until the local tensor is put in.
    made = around(torch.zeros((), dtype=dtype, device=own.device).expand(own.shape), weight)
    assert isinstance(made, DTensor)
    LOCAL_OF_DTENSOR.__set__(made, unmade(form, fill))
    made.__class__ = _Offloaded
    return made


def _copied(own: Tensor, form: Value, bytes_: Tensor) -> None:
    """Fill bytes with the values of a weight, in whichever memory these are then, in the form's dtype."""
    filled_with(at_home_value(own), form, bytes_)
