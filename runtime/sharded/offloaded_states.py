"""Optimizer states as shares that a plan may have offloaded: DTensors whose local tensors are elsewhere.

A plan works with the local tensors, which are ordinary ones, and may offload them as any other. Between
iterations the optimizer, `state_dict()` and checkpoints know the DTensors: the first use of one's values has
its local tensor back.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor

from ..storage.offloaded import bring_back
from ..torch_collectives import LOCAL_OF_DTENSOR, noticing_reads

_Offloaded = noticing_reads("OffloadedDTensor", lambda local: bring_back([local]))


def planned_local(state: Tensor) -> Tensor:
    """Return the local tensor of a state, in whichever memory it is; a plan may offload it from now on."""
    if not isinstance(state, DTensor):
        return state
    state.__class__ = _Offloaded
    return LOCAL_OF_DTENSOR.__get__(state)


def unmoved_local(tensor: DTensor) -> Tensor:
    """Return the local tensor of a DTensor, offloaded if it is, to be read and written where it is."""
    return LOCAL_OF_DTENSOR.__get__(tensor)


def put_local(state: DTensor, local: Tensor) -> None:
    """Give a state another local tensor of the same form, which may have no values yet."""
    LOCAL_OF_DTENSOR.__set__(state, local)
    state.__class__ = _Offloaded
