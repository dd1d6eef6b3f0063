"""Guards on the module: what a plan assumes of it, checked before every iteration.

These must stay: the submodules, their simple attributes, hooks, forms of tensors. Another plan can be made
for other modes, other frozen parameters, another autocast.

What the user's code reads of Python's objects is checked by guards/reads/reads.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ..devices.sharded.local_tensors import local_tensor
from ..devices.storage.offloaded import Offloaded
from ..graphs.errors import MismatchError
from ..model.attached import Place
from ..model.iteration import Iteration
from ..model.processes import Around
from ..program.forms import described, form_of
from ..program.program import Program
from ..torch_support.raw import bases_of, by_class, class_entries, is_a, is_one_of
from ..torch_support.reach import is_of_user_class, names_in
from ..torch_support.torch_fakes import modes_around, no_torch_function
from ..torch_support.torch_modules import (
    buffers_of,
    hooks_of_all_modules,
    module_structure,
    parameters_of,
)
from ..torch_support.torch_saved_hooks import hooks_of_saved_tensors, preserve_values
from .captured import HeldTensors
from .holders import Holders
from .module_state import ModuleState, SimpleAttributes
from .refused_modules import refuse_hooks

_ANEW = "plan the module anew, by another call of memplan.optimize"
_SIMPLE = (bool, int, float, str, type(None))
_WATCHED = (*_SIMPLE, FunctionType, BuiltinFunctionType, torch.Size, torch.dtype, torch.device)


class Guards:
    """Checks before each iteration that the module is as it was when the plan was made.

    places: by the name of each of the module's registered tensors its submodule and attribute.
    attached: by name where the tensors are that parameters hold as attributes.
    """

    def __init__(
        self,
        iteration: Iteration,
        program: Program,
        places: Mapping[str, tuple[nn.Module, str]],
        attached: Mapping[str, Place] = MappingProxyType({}),
    ) -> None:
        self._roots = {"": iteration.module}
        if isinstance(iteration.loss_fn, nn.Module):
            self._roots["loss_fn"] = iteration.loss_fn
        self._parts = self._walk()
        self._known = [_state(part) for _name, part in self._parts]
        self._global_hooks = hooks_of_all_modules()
        self._around = modes_around()
        self._values = [_watched(part) for _name, part in self._parts]
        self._sizes = [len(part.__dict__) for _name, part in self._parts]
        parts = [part for _name, part in self._parts]
        self._attributes = SimpleAttributes(zip(parts, self._values, strict=True))
        self._state = ModuleState(parts, places, attached)
        self._holders = Holders(attached)
        mixed = {} if iteration.scattered is None else iteration.scattered.precision
        self._peers = iteration.peers
        self._forms = {
            name: program.values[value]._replace(dtype=torch.float32)
            if name in mixed  # the weight is the master
            else program.values[value]
            for name, value in (*program.parameters.items(), *program.buffers.items())
        }
        self._parameters = {name for name, _parameter in iteration.module.named_parameters()}
        _names, self._first = self._one_object()
        self._fixed = None if iteration.purpose == "part" else _whole(iteration.module)
        self._mode, self._trains = self._fixed is not None and self._fixed.training, iteration.trains
        self._modes = self._state.modes()
        self._device = program.device.type
        self._autocast = self._autocast_now()
        self._own_autocast = iteration.autocast
        self._defaults = _defaults()
        held = {path: program.constants[value] for value, path in program.held.items()}
        self._held = HeldTensors(iteration, held, program.generators)
        self._reads = program.reads

    def other_values(self, inputs: Mapping[str, Tensor]) -> str | None:
        """Describe the first change of PyTorch's defaults, of the simple attributes that libraries read, and
        of what the user's code has read of Python's objects.

        inputs: the batch's tensors.
        """
        if (found := self._other_attributes()) is not None:
            return found
        other = self._reads and self._reads.difference(inputs)
        return str(other) if other else None

    def _other_attributes(self) -> str | None:
        if (now := _defaults()) != self._defaults:
            what, there, then = next(
                (what, there, then)
                for what, there, then in zip(_DEFAULTS, now, self._defaults, strict=True)
                if there != then
            )
            return f"PyTorch's {what} is {there}; the plan is for {then}"
        if (found := self._holders.difference()) is not None or self._attributes.same():
            return found
        for (name, part), known, size in zip(self._parts, self._values, self._sizes, strict=True):
            own = part.__dict__
            # The quick comparison of all never succeeds any more once one module has other attributes than at
            # first. To list what is watched of each module would take longer than this.
            if len(own) == size and all(own.get(each, _NONE) == value for each, value in known.items()):
                continue
            if (now := _watched(part)) != known:
                attribute = next(a for a in (*known, *now) if known.get(a, _NONE) != now.get(a, _NONE))
                then, there = (row.get(attribute, "not there") for row in (known, now))
                return f"{f'{name}.' if name else ''}{attribute} is {there!r}; the plan is for {then!r}"
        self._attributes.note()
        return None

    def other_mode(self) -> str | None:
        """Describe the first change of autocast, of a submodule's mode, or of what requires a gradient.

        Raises MismatchError for the mode of the whole module, which is rather forgotten than meant, and for
        an autocast around a plan that has its own.
        """
        if (autocast := self._autocast_now()) != self._autocast:
            if self._own_autocast is not None:
                raise MismatchError(
                    f"the step is called {_spelled(autocast)}; the plan has its own, to "
                    f"{self._own_autocast}: call the step without"
                )
            return f"the step is called {_spelled(autocast)}; the plan was made {_spelled(self._autocast)}"
        if (now := self._state.modes()) == self._modes or now is None or self._modes is None:
            return None
        if self._fixed is not None and self._fixed.training != self._mode:
            call = _RIGHT_CALL[self._mode] if self._trains else f"call {_MODE[self._mode]} before the step"
            raise MismatchError(f"training is {self._fixed.training}; the plan is for {self._mode}: {call}")
        names = (
            *(f"{name}.training".lstrip(".") for name, _part in self._parts),
            *(f"{name}.requires_grad" for name in self._state.names),
        )
        both = zip(names, chain(*now), chain(*self._modes), strict=True)
        name, there, then = next((name, there, then) for name, there, then in both if there != then)
        return f"{name} is {there}; the plan is for {then}"

    def check(self, read: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Check all guards, and return the module's parameters and buffers by name.

        What was as it is now at the last complete check is not checked once more.

        read: returns these tensors.

        Raises MismatchError, one line.
        """
        self._held.check()
        self._check_surroundings()
        if (unchanged := self._state.unchanged()) is not None:
            return unchanged
        self._state.forget()
        tensors = read()
        self.check_module(tensors)
        self._state.note(tensors)
        return tensors

    def _check_surroundings(self) -> None:
        """Check the hooks that run for all modules, and what a caller can have operators or autograd run."""
        if hooks_of_all_modules() != self._global_hooks:
            raise MismatchError(f"PyTorch's hooks for all modules changed after the plan was made: {_ANEW}")
        if (now := modes_around()) != self._around:
            mode = next(each for each in (*now, *self._around) if not (each in now and each in self._around))
            where, way = "outside", "within it, or plan the module anew"
            if mode in now:
                where, way = "within", "outside, and do in forward what the mode does"
            raise MismatchError(
                f"the step is called {where} a {type(mode).__name__}, a mode for PyTorch's functions, and "
                f"was not planned so: call it {way}"
            )
        hooks = hooks_of_saved_tensors() if self._trains else None
        if hooks is not None and not preserve_values(hooks):
            raise MismatchError(
                "the step is called within a checkpoint, or saved_tensors_hooks that change values, and what "
                "a plan keeps for backward does not pass through these: call it outside"
            )

    def check_module(self, tensors: Mapping[str, Tensor]) -> None:
        """Check completely the guards on modules, and on their tensors, given by name.

        Raises MismatchError, one line.
        """
        for (name, part), known in zip(self._parts, self._known, strict=True):
            if _state(part) != known:
                raise MismatchError(f"{_difference(name, part, known)} {_ANEW}")
        names, first = self._one_object()
        for place, (now, then) in enumerate(zip(first, self._first, strict=True)):
            if now != then:
                both = f"{names[place]} and {names[now if now < place else then]}"
                are = "one tensor now; the plan is for two" if now < place else "two now; the plan is for one"
                raise MismatchError(f"{both} are {are}: {_ANEW}")
        with no_torch_function():
            for name, tensor in tensors.items():
                self._check_tensor(name, tensor)

    def _check_tensor(self, name: str, tensor: Tensor) -> None:
        if name in self._parameters:
            refuse_hooks(name, tensor)
        tensor = tensor if self._peers is None else local_tensor(tensor)
        if isinstance(tensor, Offloaded):
            return
        form = self._forms[name]
        if (found := form_of(tensor, form)) != form:
            raise MismatchError(f"{name} is {described(found)}; the plan is for {described(form)}")

    def _one_object(self) -> tuple[list[str], list[int]]:
        """Return the names of all parameters and buffers, each with the place of the first one that is the
        same object.
        """
        names: list[str] = []
        first: dict[int, int] = {}
        places: list[int] = []
        for path, part in self._parts:
            for key, tensor in (*parameters_of(part).items(), *buffers_of(part).items()):
                if tensor is not None:
                    places.append(first.setdefault(id(tensor), len(names)))
                    names.append(f"{path}.{key}".lstrip("."))
        return names, places

    def _walk(self) -> list[tuple[str, nn.Module]]:
        return [
            (".".join(part for part in (root, path) if part), module)
            for root, start in self._roots.items()
            for path, module in start.named_modules()
        ]

    def _autocast_now(self) -> torch.dtype | None:
        if not torch.is_autocast_enabled(self._device):
            return None
        return torch.get_autocast_dtype(self._device)


_MODE = {True: "model.train()", False: "model.eval()"}
_RIGHT_CALL = {
    True: "call model.train() before the step, or step.evaluate, which computes the loss in eval mode",
    False: (
        "call model.eval() before the step, or model.train() before memplan.optimize; step.evaluate computes "
        "the loss in eval mode, whichever the model is in"
    ),
}
"""Ways out if the whole module is in another mode than when it was planned, by that mode."""


def _whole(module: nn.Module) -> nn.Module:
    """Return the module whose mode the user sets: that inside a function of one."""
    return module.module if isinstance(module, Around) else module


_DEFAULTS = (
    "default dtype",
    "default device",
    "switch torch.use_deterministic_algorithms",
    "choice of attention kernels (flash, math, memory-efficient)",
)


def _defaults() -> tuple[Any, ...]:
    """Return settings by which PyTorch's functions choose their operators, whatever the code reads.

    The default dtype and device are those of `torch.zeros(3)` in forward.
    """
    kernels = torch.backends.cuda
    attention = kernels.flash_sdp_enabled(), kernels.math_sdp_enabled(), kernels.mem_efficient_sdp_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    return torch.get_default_dtype(), torch.get_default_device(), deterministic, attention


def simple_attributes(part: nn.Module) -> dict[str, Any]:
    """Return numbers, switches and words among a module's attributes, `training` and a dropout's `p` among
    them.
    """
    return {
        name: value
        for name, value in vars(part).items()
        if is_one_of(type(value), _SIMPLE) and name[0] != "_"
    }


def _watched(part: nn.Module) -> dict[str, Any]:
    """Return the module's simple attributes that code of libraries may read.

    What the user's own code reads is recorded (guards/reads/recorder.py).
    """
    known = _names_of_libraries(type(part))
    return {
        name: value
        for name, value in vars(part).items()
        if (
            is_one_of(type(value), _WATCHED)
            or (type(value) is tuple and all(is_one_of(type(each), _SIMPLE) for each in value))
        )
        and (name in known if known is not None else name[0] != "_")
        and name != "training"
    }


@by_class
def _names_of_libraries(kind: type[nn.Module]) -> frozenset[str] | None:
    """Return the attributes that a library's methods in a user's class name; None for a library's class:
    any.
    """
    if not is_of_user_class(kind):
        return None
    bases = [base for base in bases_of(kind) if not is_of_user_class(base)]
    bases = [base for base in bases if base is not nn.Module and base is not object]
    methods = [each for base in bases for each in class_entries(base).values() if is_a(each, FunctionType)]
    return frozenset(name for each in methods for name in names_in(each.__code__))


@contextmanager
def simple_attributes_kept(module: nn.Module) -> Generator[None]:
    """Restore the module's simple attributes after an eager iteration between planned ones: a model may
    count.
    """
    before = [(part, simple_attributes(part)) for part in module.modules()]
    try:
        yield
    finally:
        for part, there in before:
            for name in simple_attributes(part).keys() - there.keys():
                delattr(part, name)
            vars(part).update(there)


_State = tuple[type, tuple[Any, ...], tuple[Any, ...], list[str], object]


def _state(part: nn.Module) -> _State:
    """Return a module's class, submodules, hooks, own tensors, and a forward set on the instance."""
    parts, hooks, tensors = module_structure(part)
    return type(part), parts, hooks, tensors, vars(part).get("forward")


def _difference(name: str, part: nn.Module, known: _State) -> str:
    """Describe in words what has changed."""
    aspects = ("its class", "its submodules", "its hooks", "its tensors", "its forward")
    what = next(what for what, now, then in zip(aspects, _state(part), known, strict=True) if now != then)
    return f"{name or 'the module'}: {what} changed after the plan was made:"


def _spelled(autocast: torch.dtype | None) -> str:
    return "without autocast" if autocast is None else f"under autocast to {autocast}"


_NONE = object()
