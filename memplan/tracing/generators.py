"""Random generators of the model's own: `torch.randn(…, generator=self.generator)`.

The trace notes which generator a call draws from, and traces it as if from the default one; lowering puts the
generator back. One that no attribute holds is refused, and so is a seed that the iteration's code sets: what
is drawn after it would be the same in every eager iteration.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ..devices.calls.randomness import draws, generator_place
from ..guards.captured import roots_of
from ..model.iteration import Iteration
from ..torch_support.raw import is_a
from ..torch_support.reach import Path, reachable
from ..torch_support.torch_fakes import DispatchMode, device_of_fake, no_dispatch_modes
from ..torch_support.torch_operators import asks_for_device
from ..torch_support.torch_tensors import identity_of
from ..torch_support.unsupported import TraceError, users_line
from .layers import new_nodes, traced_graph

GENERATOR = "memplan_generator"
"""The key of a node's path to its generator."""

_SEEDED = (
    "draws from a random generator that was seeded in the iteration (torch.manual_seed, fork_rng, …): eager "
    "draws the same numbers in every iteration, a plan goes on; draw such numbers once, into a buffer, "
    "or seed "
    "a generator that the module holds before training"
)
_NOT_HELD = (
    "draws from a torch.Generator that neither the module nor the loss function holds: make it in __init__, "
    "keep it as an attribute, and draw from that"
)


def held_generators(iteration: Iteration) -> dict[Path, torch.Generator]:
    """Return the generators that attributes of the module and the loss function hold, by the path to each."""
    found: dict[int, tuple[Path, torch.Generator]] = {}
    for path, thing in reachable(roots_of(iteration)):
        if is_a(thing, torch.Generator):
            found.setdefault(identity_of(thing), (path, thing))
    return {path: thing for path, thing in found.values() if not _is_default(thing)}


class Generators(DispatchMode):
    """Mode of the trace that notes which generator each call draws from.

    held: by path.
    """

    def __init__(self, held: Mapping[Path, torch.Generator]) -> None:
        super().__init__()
        self._paths = {identity_of(generator): path for path, generator in held.items()}
        self._watched: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self._all = [torch.default_generator, *held.values()]

    @contextmanager
    def watched(self) -> Generator[None]:
        """Refuse seeds that are set meanwhile. Afterwards the generators are as before."""
        before = [generator.get_state() for generator in self._all]
        # One number is drawn first: else a seed that was set before the trace would hide the same one set in
        # it.
        for generator in self._all:
            torch.empty((), device=generator.device).uniform_(generator=generator)
        self._watched = {identity_of(each): (each, each.get_state()) for each in self._all}
        try:
            yield
            for generator in self._all:
                self._check(generator)
        finally:
            for generator, state in zip(self._all, before, strict=True):
                generator.set_state(state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if asks_for_device(func, args):
            return device_of_fake(args[0])
        kwargs = kwargs or {}
        if not draws(func, args, kwargs):
            return func(*args, **kwargs)
        args, kwargs, given = _without_generator(func, args, kwargs)
        self._check(given or torch.default_generator)
        made = func(*args, **kwargs)
        if given is not None and not _is_default(given):
            path = self._paths.get(identity_of(given))
            if path is None:
                raise TraceError(f"{users_line()}{_NOT_HELD}")
            # The last such node is the one that was just traced.
            node = next(node for node in reversed(traced_graph().nodes) if node.target is func)
            node.meta[GENERATOR] = path
        return made

    def _check(self, generator: torch.Generator) -> None:
        watched = self._watched.get(identity_of(generator))
        if watched is None:
            return
        with no_dispatch_modes():
            same = torch.equal(watched[1], generator.get_state())
        if not same:
            raise TraceError(f"{users_line()}{_SEEDED}")


def inherit_generator(before: fx.Node) -> None:
    """Let nodes traced since replace a node: those that draw do so from its generator."""
    if (path := before.meta.get(GENERATOR)) is None:
        return
    for node in new_nodes():
        if node.op == "call_function" and generator_place(node.target) is not None:
            node.meta[GENERATOR] = path


def _is_default(generator: torch.Generator) -> bool:
    return identity_of(generator) == identity_of(torch.default_generator)


def _without_generator(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, torch.Generator | None]:
    place = generator_place(func)
    if place is None:
        return args, kwargs, None
    if place < len(args):
        return (*args[:place], None, *args[place + 1 :]), kwargs, args[place]
    return args, {**kwargs, "generator": None}, kwargs.get("generator")
