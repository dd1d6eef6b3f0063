"""Tensors that a module's parameters carry as attributes: scales, tables and offsets of a quantised weight.

The module has not registered them, but an iteration reads them as it reads buffers. A plan takes them as
such, by their path (`0.weight.quant_state.absmax`), and finds them anew in each iteration: the parameter and
the objects between may be replaced. A library whose parameters are of a class of its own may keep the tensors
in an object of the layer instead (`0.state.SCB`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..graphs.errors import MismatchError
from ..torch_support.raw import is_a, is_same_key, module_of, name_of, own_attributes
from ..torch_support.reach import Parts, Path, is_of_user_class, parts_of, reachable, spelled
from ..torch_support.torch_fakes import FakeTensor, names_of_fakes
from ..torch_support.torch_tensors import HOLD, attributes_of, wraps_others

_MADE_BY_FORWARD = {"MatmulLtState": ("is_training", "idx")}
"""By class, attributes that forward writes before it reads them: bitsandbytes' mode, columns of outliers."""


class Place(NamedTuple):
    """Where an attached tensor is: the submodule, the parameter or object there, the path from that."""

    module: nn.Module
    attribute: str
    path: Path

    def get(self) -> Any:
        """Return what is there now; None if there is nothing."""
        thing: Any = getattr(self.module, self.attribute, None)
        for key in self.path:
            own = attributes(thing)
            if type(key) is str and key in own:
                thing = own[key]
            else:
                thing = next((part for name, part in _parts(thing) if is_same_key(name, key)), None)
        return thing


def attached_places(module: nn.Module) -> dict[str, Place]:
    """Return by name where the tensors are that the module's parameters carry, each once.

    Tensors that the module has registered, and those that require a gradient, are left out.
    """
    seen = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    found: dict[str, Place] = {}
    for name, parameter in module.named_parameters():
        if wraps_others(parameter) or not attributes(parameter):
            continue
        owner, _dot, own = name.rpartition(".")
        layer = module.get_submodule(owner)
        for attribute, holder in ((own, parameter), *_objects_of_library(parameter, layer)):
            for path, thing in reachable(holder, _parts):
                if path and is_a(thing, Tensor) and id(thing) not in seen and not thing.requires_grad:
                    seen.add(id(thing))
                    place = Place(layer, attribute, path)
                    found[f"{owner}.{attribute}.{spelled(path)}".lstrip(".")] = place
    return found


def settle(module: nn.Module) -> None:
    """Have layers of bitsandbytes in 8 bits move their scales from the weight, as the first forward does."""
    for layer in module.modules():
        move: Any = getattr(type(layer), "init_8bit_state", None)
        if move is not None and attributes(layer.weight).get("CB") is not None:
            move(layer)


def _objects_of_library(parameter: nn.Parameter, layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what the layer has of the library that the parameter's class is of."""
    library = module_of(type(parameter)).partition(".")[0]
    if library != "torch" and not is_of_user_class(type(parameter)):
        for name, thing in vars(layer).items():
            if module_of(type(thing)).partition(".")[0] == library and not is_a(thing, nn.Module):
                yield name, thing


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return what an iteration reads in addition to parameters: the buffers, then the attached tensors."""
    return {**dict(module.named_buffers()), **read_attached(attached_places(module))}


def read_attached(places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Return the tensors at these places now. Raises MismatchError if one is not there."""
    found = {name: place.get() for name, place in places.items()}
    for name, tensor in found.items():
        if not is_a(tensor, Tensor):
            raise MismatchError(
                f"{name}, a tensor when the plan was made, is {tensor!r:.80}: plan the module anew, by "
                "another call of memplan.optimize"
            )
    return found


def attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object, without those that each forward sets anew; of a tensor those that
    its own code or class has set.
    """
    if not is_a(thing, Tensor):
        own = own_attributes(thing) or {}
        made = _MADE_BY_FORWARD.get(name_of(type(thing)), ())
        return {name: value for name, value in own.items() if name not in made} if made else own
    own = attributes_of(thing)  # an offloaded tensor stays where it is
    hidden = names_of_fakes() if is_a(thing, FakeTensor) else ()
    return {name: value for name, value in own.items() if name != HOLD and name not in hidden}


def _parts(thing: Any) -> Parts:
    """Yield what the walk goes on to: not to modules, which a parameter may know as its owner."""
    if is_a(thing, nn.Module):
        return iter(())
    if is_a(thing, nn.Parameter | SimpleNamespace) or name_of(type(thing)) in _MADE_BY_FORWARD:
        return iter(attributes(thing).items())
    return parts_of(thing)
