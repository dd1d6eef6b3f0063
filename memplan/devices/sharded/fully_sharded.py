"""Modules that `torch.distributed.fsdp.fully_shard` has wrapped (FSDP2), taken out of it in place.

FSDP2 changes a module's class and gives it hooks that gather weights and scatter gradients. A plan does
both itself, so class and hooks go. Parameters stay the objects that they are, DTensors spread by rows, which
the user's optimizer has. With a mixed-precision policy they are the masters. Options of FSDP2 that a plan
can't do are refused.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ...graphs.errors import InputError
from ...torch_support.torch_fsdp import FsdpUnit, fsdp_units
from .meshes import PLACEMENTS, Mesh
from .shards import Precision


class Wrapped(NamedTuple):
    """A module that fully_shard has wrapped. units: in the order of its parts, those inside first or last."""

    module: nn.Module
    units: list[FsdpUnit]
    mesh: DeviceMesh


def find_wrapped(module: nn.Module, shard: Mesh | None) -> Wrapped | None:
    """Return what fully_shard has made of a module, None for one that it has not wrapped.

    shard: the mesh that the user has given; fully_shard's is the one.

    Raises:
        InputError: parameters that are not spread by rows over one mesh, of ranks or of replicas and ranks.
    """
    units = fsdp_units(module)
    if not units:
        return None
    for unit in units:
        unit.reshard()  # after a forward without a backward weights are whole
    found = dict(_spread(module))
    first, mesh = next(iter(found.items()))
    for name, other in found.items():
        if other != mesh:
            raise InputError(
                f"fully_shard: {first} and {name} are spread over different meshes: use one mesh"
            )
    if isinstance(shard, DeviceMesh) and shard != mesh:
        raise InputError("shard= has another mesh than fully_shard was given: leave shard= out")
    return Wrapped(module, units, mesh)


def _spread(module: nn.Module) -> Iterator[tuple[str, DeviceMesh]]:
    """Yield each parameter's mesh. Raises InputError for one that is not spread by rows over ranks alone."""
    for name, weight in module.named_parameters():
        if not isinstance(weight, DTensor):
            raise InputError(
                f"fully_shard: {name} is not spread over the ranks: wrap the whole module too, by "
                "fully_shard(module), without ignored_params="
            )
        if weight.device_mesh.ndim > 1 and weight.placements not in PLACEMENTS:
            raise InputError(
                f"fully_shard: {name} is spread over a mesh of {weight.device_mesh.ndim} dimensions, as "
                f"{weight.placements}, and a plan has replicas and ranks alone: give fully_shard "
                f"mesh=init_device_mesh({weight.device_mesh.device_type!r}, (ranks,)) or (replicas, ranks), "
                "without tensor parallelism"
            )
        if weight.placements not in PLACEMENTS:
            raise InputError(
                f"fully_shard: {name} is placed as {weight.placements[0]}, and is spread by rows in a plan: "
                "leave shard_placement_fn= out"
            )
        if weight.device.type not in (weight.device_mesh.device_type, "meta"):
            raise InputError(
                f"fully_shard: {name} is offloaded to the {weight.device.type}, which a plan does not do: "
                "leave offload_policy= out"
            )
        yield name, weight.device_mesh


def precision_of(wrapped: Wrapped) -> dict[str, Precision]:
    """Return by name the weights that FSDP2 gathers in bfloat16 and keeps in float32.

    Raises:
        InputError: options of FSDP2 that a plan can't do.
    """
    for unit in wrapped.units:
        for call in unit.changes:
            raise InputError(f"fully_shard: {call}() was called, which a plan does not do: leave it out")
    found, units = dict[str, Precision](), _by_module(wrapped)
    for name, weight in wrapped.module.named_parameters():
        policy = units[name.rpartition(".")[0]].policy
        dtype = policy.param_dtype or weight.dtype
        reduced = policy.reduce_dtype or dtype
        if (weight.dtype, dtype) not in ((dtype, dtype), (torch.float32, torch.bfloat16)):
            raise InputError(
                f"fully_shard: MixedPrecisionPolicy(param_dtype={dtype}) is not supported for {name} in "
                f"{weight.dtype}: float32 weights are gathered in float32 or torch.bfloat16; give "
                "param_dtype=torch.bfloat16, and make the module in float32, by .float()"
            )
        if reduced not in (dtype, weight.dtype):
            raise InputError(
                f"fully_shard: MixedPrecisionPolicy(reduce_dtype={reduced}) is not supported for {name}: "
                f"its gradients are summed up in {' or '.join(sorted({str(dtype), str(weight.dtype)}))}; "
                "leave reduce_dtype= out"
            )
        if dtype != weight.dtype:
            found[name] = Precision(dtype, reduced)
    return found


def _by_module(wrapped: Wrapped) -> dict[str, FsdpUnit]:
    """Return by the path of each module the innermost unit that has it."""
    own = {id(part): unit for unit in wrapped.units for part in unit.modules}
    found = dict[str, FsdpUnit]()
    for path, part in wrapped.module.named_modules():  # what a module is in comes before it
        if unit := own.get(id(part)) or found.get(path.rpartition(".")[0]):
            found[path] = unit
    return found


@contextmanager
def taken_out(wrapped: Wrapped) -> Generator[None]:
    """Take a module out of FSDP2 for good; if what follows fails it is as before."""
    for unit in wrapped.units:
        unit.unwrap()
    try:
        yield
    except BaseException:
        for unit in wrapped.units:
            unit.restore()
        raise
