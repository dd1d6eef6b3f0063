"""Modules that `torch.distributed.fsdp.fully_shard` has wrapped (FSDP2), taken out of it in place.

FSDP2 changes a module's class and gives it hooks that gather weights and scatter gradients. A plan does
both itself, so class and hooks go. Parameters stay the objects that they are, DTensors `Shard(0)`, which the
user's optimizer has. Options of FSDP2 that a plan can't do are refused.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ...graphs.errors import InputError
from ..torch_fsdp import FsdpUnit, fsdp_units
from .ranks import Mesh


class Wrapped(NamedTuple):
    """A module that fully_shard has wrapped. units: in the order of its parts, those inside first or last."""

    module: nn.Module
    units: list[FsdpUnit]
    mesh: DeviceMesh


def find_wrapped(module: nn.Module, shard: Mesh | None) -> Wrapped | None:
    """Return what fully_shard has made of a module, None for one that it has not wrapped.

    shard: the mesh that the user has given; fully_shard's is the one.

    Raises:
        InputError: parameters that are not spread by rows over one mesh of one dimension.
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
        if weight.device_mesh.ndim != 1:
            raise InputError(
                f"fully_shard: {name} is spread over a mesh of {weight.device_mesh.ndim} dimensions, and one "
                "is supported: give fully_shard mesh=init_device_mesh"
                f"({weight.device_mesh.device_type!r}, (ranks,)), without replicas and tensor parallelism"
            )
        if weight.placements != (Shard(0),):
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


def check_policy(wrapped: Wrapped) -> None:
    """Raise InputError, one line, for options of FSDP2 that a plan can't do."""
    for unit in wrapped.units:
        policy = unit.policy
        weights = {each.dtype for part in unit.modules for each in part.parameters()}
        if (dtype := policy.param_dtype) is not None and weights != {dtype}:
            raise InputError(
                f"fully_shard: MixedPrecisionPolicy(param_dtype={dtype}) is not supported for weights in "
                f"{', '.join(sorted(map(str, weights)))}: cast the module by .to({dtype}) first, leave "
                "the policy out, and give optimize master_weights=True"
            )
        if dtype is not None and policy.cast_forward_inputs:
            raise InputError(
                f"fully_shard: MixedPrecisionPolicy(param_dtype={dtype}) casts the inputs of modules, which "
                "a plan does not do: leave param_dtype= out, since the weights have this dtype already"
            )
        if policy.output_dtype is not None:
            raise InputError(
                f"fully_shard: MixedPrecisionPolicy(output_dtype={policy.output_dtype}) is not supported: "
                "leave it out, and cast what forward returns there"
            )
        if (reduced := policy.reduce_dtype) not in (None, dtype) and weights != {reduced}:
            raise InputError(
                f"fully_shard: MixedPrecisionPolicy(reduce_dtype={reduced}) is not supported: gradients "
                "are summed up in the type of their weights; leave it out"
            )
        for call in unit.changes:
            raise InputError(f"fully_shard: {call}() was called, which a plan does not do: leave it out")


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
