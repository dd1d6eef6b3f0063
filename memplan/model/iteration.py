"""One training iteration: a module, an example of its inputs, how the loss comes of them, and how the
weights are then updated, if they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..devices.device.choice import device_of
from ..devices.sharded.ranks import Ranks
from ..devices.sharded.shards import Shards
from ..devices.sharded.single import SINGLE, SingleRank
from ..graphs.errors import InputError, MismatchError
from ..graphs.transformations.updates import When
from ..program.outputs import Output, Wanted, output_of
from ..torch_support.raw import MISSING, class_entry, is_a, is_mapping
from ..torch_support.reach import is_of_user_class
from .arguments import by_name
from .batch_objects import container_parts, object_parts, with_parts
from .clipping import Clipping
from .processes import Processes


class Called(NamedTuple):
    """Inputs of a call with positional and keyword arguments together."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


Arguments = tuple[Any, ...] | dict[str, Any] | Called
"""The module's inputs: positional, by name, or both."""


class Labelled(NamedTuple):
    """The module's inputs together with what only the loss function takes: any nest of tensors."""

    inputs: Arguments
    targets: Any


class Scaled(NamedTuple):
    """The inputs together with a number on the device by which the loss is multiplied before backward:
    GradScaler's.
    """

    inputs: Arguments | Labelled
    scale: Tensor


Inputs = Arguments | Labelled | Scaled
LossFunction = Callable[..., Tensor]

Purpose = Literal["train", "part", "evaluate", "predict"]

TARGETS = "targets"
"""The name of the targets among the tensors of an iteration."""

SCALE = "loss scale"
"""That of the scale; no argument has it."""

DIVISOR = "loss divisor"
"""Name of the input by which the loss is divided for backward instead of the gradient accumulation steps: a
number on the device, of loops that say it with each batch. The module's function takes it out.
"""


class Updates(NamedTuple):
    """Planned updates of the weights.

    optimizer: a planned one (updates/optimizers/), of the module's parameters.
    when: where in the iteration weights are updated.
    clipping: None if gradients are taken as they are.
    masters: updates are made in float32, see updates/masters.py.
    ema: the decay of the weights' moving averages, see updates/averaged.py.
    wide_sums: gradients of several batches are summed, and clipped, in float32; without masters rounded then.
    early: updates do not wait for the norm or the infinite gradients of all, see updates/early.py.
    bucket: the most bytes of small weights that are updated together, see updates/buckets.py; 0 for none.
    block: the most bytes of a large weight that are updated at once, see updates/row_blocks.py; 0 for all.
    """

    optimizer: torch.optim.Optimizer
    when: When = "in-backward"
    clipping: Clipping | None = None
    masters: bool = False
    ema: float | None = None
    wide_sums: bool = False
    early: bool = False
    bucket: int = 0
    block: int = 0


class Iteration(NamedTuple):
    """One training iteration.

    inputs: positional (a tuple), by keyword (a dict) or both, with targets or without.
    loss_fn: from the module's output to the loss, see `loss_of`; None if the output has a `.loss` or is the
        loss.
    updates: None if the gradients are the result.
    outputs: which of the tensors that the module returns are results.
    processes: those that average their gradients.
    purpose: what is computed: a training iteration; forward and backward as part of a graph of the caller's,
        who gives the outputs' gradients between the two; or forward alone, with the loss or without.
    autocast: of forward and loss; None for the caller's.
    accumulate: number of gradient accumulation steps: backward is of the loss divided by it.
    scaler: the one whose scale the inputs have, if they have one.
    shards: of weights that are spread over ranks; None if each process has them whole.
    peers: the ranks with which the iteration's own code communicates; None if it does not. With shards: it
        gathers its weights itself (devices/sharded/gathered.py).
    one_path: trace the path for torch.compile, which the values of a batch do not decide.
    """

    module: nn.Module
    inputs: Inputs
    loss_fn: LossFunction | None = None
    updates: Updates | None = None
    outputs: Wanted = False
    processes: Processes | None = None
    purpose: Purpose = "train"
    autocast: torch.dtype | None = None
    accumulate: int = 1
    scaler: torch.amp.GradScaler | None = None
    shards: Shards | None = None
    peers: Ranks | None = None
    one_path: bool = False

    @property
    def ranks(self) -> Ranks | None:
        """The ranks that run the same plan at the same time; None if this process plans for itself."""
        return self.peers if self.shards is None else self.shards.ranks

    @property
    def group(self) -> Ranks | SingleRank:
        """The ranks that run the same plan at the same time; this one alone if it plans for itself."""
        return SINGLE if self.ranks is None else self.ranks

    @property
    def gathers(self) -> bool:
        """Tell whether it gathers weights, and scatters their gradients, by its own operations."""
        return self.shards is not None and self.peers is not None

    @property
    def scattered(self) -> Shards | None:
        """The shares of weights that the schedule gathers, and whose gradients it scatters; None if there are
        none.
        """
        return None if self.gathers else self.shards

    @property
    def alone(self) -> bool:
        """Tell whether no other process runs it too."""
        return self.processes is None and self.ranks is None

    @property
    def accumulates(self) -> bool:
        """Tell whether a planned update is that of several batches."""
        return self.updates is not None and self.accumulate > 1

    @property
    def trains(self) -> bool:
        return self.purpose in ("train", "part")

    @property
    def has_loss(self) -> bool:
        return self.purpose in ("train", "evaluate")


def on_device(iteration: Iteration, device: str | torch.device) -> Iteration:
    """Return the iteration on a device; the module itself moves. Raises InputError for tensors on meta."""
    if torch.device(device).type != "meta":
        _refuse_meta(iteration)
    # Before the first weight is there: the allocator's settings hold for memory that it takes later.
    device_of(torch.device(device)).expect_weights()
    tensors = {name: tensor.to(device) for name, tensor in tensors_in(iteration.inputs).items()}
    inputs = with_tensors(iteration.inputs, tensors)
    return iteration._replace(module=iteration.module.to(device), inputs=inputs)


def _refuse_meta(iteration: Iteration) -> None:
    """Raise InputError for a weight, a buffer or an input on meta: it has no values to run with."""
    module, there = iteration.module, tensors_in(iteration.inputs)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for what, tensors in (("weight or buffer", named), ("input", there)):
        on_meta = next((name for name, tensor in tensors.items() if tensor.is_meta), None)
        if on_meta is not None:
            raise InputError(
                f"the {what} {on_meta or 'of the module'} is on meta, without values: make it on the CPU to "
                "measure and train; an estimate needs no values: --gpu NAME"
            )


def with_targets(inputs: Arguments, targets: Any) -> Inputs:
    """Return the inputs with targets, if there are some. Raises InputError if an input has their name.

    targets: None if there are none.
    """
    if targets is None:
        return inputs
    if TARGETS in apart(inputs)[1]:
        raise InputError("targets are given twice: as an input of the module and for the loss function")
    return Labelled(inputs, targets)


def refuse_gradients_of_inputs(inputs: Inputs) -> None:
    """Raise MismatchError for an input that requires a gradient."""
    for name, tensor in tensors_in(inputs).items():
        if tensor.requires_grad:
            raise MismatchError(
                f"input {name} requires a gradient, which a step does not compute: call "
                "memplan.optimize_module, whose result is called as the module is, or detach the input"
            )


def scale_of(inputs: Inputs) -> Tensor | None:
    return inputs.scale if isinstance(inputs, Scaled) else None


def apart(inputs: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call with these inputs."""
    if isinstance(inputs, Called):
        return inputs.positional, inputs.named
    return ((), inputs) if isinstance(inputs, dict) else (inputs, {})


def joined(positional: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
    """Return the inputs of a call with these positional and keyword arguments."""
    return Called(positional, named) if positional and named else named or positional


def unscaled(inputs: Inputs) -> Arguments | Labelled:
    return inputs.inputs if isinstance(inputs, Scaled) else inputs


def _autocasting(iteration: Iteration) -> AbstractContextManager[Any]:
    """Return the autocast context for forward and loss."""
    if iteration.autocast is None:
        return nullcontext()
    weight = next(iteration.module.parameters())
    return torch.autocast(weight.device.type, dtype=iteration.autocast)


def call(module: Callable[..., Any], inputs: Inputs) -> Any:
    inputs = unscaled(inputs)
    if isinstance(inputs, Labelled):
        inputs = inputs.inputs
    positional, named = apart(inputs)
    return module(*positional, **named)


def forward(iteration: Iteration, module: Callable[..., Any], inputs: Inputs) -> tuple[Tensor | None, Output]:
    """Return the loss, if the iteration has one, and the outputs that are requested."""
    inputs = unscaled(inputs)
    with _autocasting(iteration):
        returned = call(module, inputs)
        if not iteration.has_loss:
            return None, output_of(returned, iteration.outputs, None)
        # A loss function that takes the inputs gets one dict, however forward was called.
        known = by_name(iteration.module, *inputs) if isinstance(inputs, Called) else inputs
        loss = loss_of(returned, iteration.loss_fn, known, trains=iteration.trains)
        return loss, output_of(returned, iteration.outputs, loss)


def differentiated(iteration: Iteration, loss: Tensor, inputs: Inputs) -> Tensor:
    """Return the tensor of which backward computes gradients: the loss, or its share of an update, as
    GradScaler scales it.
    """
    given = unscaled(inputs)
    divisor = given.get(DIVISOR, iteration.accumulate) if isinstance(given, dict) else iteration.accumulate
    # Divided first, then scaled, as training loops do: the other order rounds otherwise.
    part = loss if iteration.accumulate == 1 else loss / divisor
    scale = scale_of(inputs)
    return part if scale is None else part * scale


def loss_of(output: Any, loss_fn: LossFunction | None, inputs: Inputs = (), *, trains: bool = True) -> Tensor:
    """Return the scalar loss, to differentiate if the iteration trains.

    Raises InputError if there is none.

    It is `loss_fn(output, targets)` if there are targets, else `loss_fn(output, inputs)` if the function
    needs two arguments, else `loss_fn(output)`.
    """
    if loss_fn is None:
        loss = _own_loss(output)
    elif isinstance(inputs, Labelled):
        loss = loss_fn(output, inputs.targets)
    else:
        loss = loss_fn(output, inputs) if _needs_two(loss_fn) else loss_fn(output)
    if not isinstance(loss, Tensor):
        raise InputError(f"the loss is {_what(loss)}, not a tensor")
    if loss.numel() != 1:
        raise InputError(f"the loss has the shape {tuple(loss.shape)}: it must be one number")
    if trains and not loss.requires_grad:
        raise InputError(_why_without_gradient())
    return loss


def _why_without_gradient() -> str:
    if torch.is_inference_mode_enabled():
        return (
            "torch.inference_mode() is on around memplan: plan and train outside of it, or in a block `with "
            "torch.inference_mode(False):`"
        )
    if not torch.is_grad_enabled():
        return (
            "gradients are off around memplan (torch.set_grad_enabled(False) or torch.no_grad()): plan and "
            "train in a block `with torch.enable_grad():`"
        )
    return "the loss depends on no parameter that requires a gradient"


def _needs_two(loss_fn: LossFunction) -> bool:
    """Tell whether the function has two parameters that are given by position and have no default."""
    try:
        # `__call__` of a module takes anything.
        signature = inspect.signature(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn)
    except (TypeError, ValueError):  # a function written in C that tells nothing
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in signature.parameters.values() if each.default is inspect.Parameter.empty]
    return sum(each.kind in by_position for each in needed) == 2


def _own_loss(output: Any) -> Any:
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if loss is not None:
        return loss
    first = output[0] if isinstance(output, tuple | list) and output else output  # (loss, logits, …)
    if isinstance(first, Tensor) and first.numel() == 1:
        return first
    raise InputError(
        f"the module returns {_what(output)} without a loss: pass a loss_fn(output, …), which build() of a "
        "model file returns after the inputs"
    )


def _what(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}"
    return "None" if thing is None else f"an object of type {type(thing).__name__}"


# ── tensors among nested inputs ─────────────────────────────────────────────────────────────────────


def tensors_in(inputs: Any, name: str = "") -> dict[str, Tensor]:
    """Return the tensors in nested containers and objects, in order, named by their path: `past.0.key`."""
    return {path: leaf for path, leaf in _leaves(inputs, name) if is_a(leaf, Tensor)}


def with_tensors(inputs: Any, tensors: Mapping[str, Tensor], name: str = "") -> Any:
    """Return the same nest with the tensors of `tensors_in` replaced by others."""
    parts = _parts(inputs)
    if parts is None:
        return tensors[name] if is_a(inputs, Tensor) else inputs
    if is_a(inputs, Scaled):
        return Scaled(with_tensors(inputs.inputs, tensors, name), tensors[_place(name, SCALE)])
    if is_a(inputs, Labelled):
        targets = with_tensors(inputs.targets, tensors, _place(name, TARGETS))
        return Labelled(with_tensors(inputs.inputs, tensors, name), targets)
    made = {key: with_tensors(part, tensors, _place(name, key)) for key, part in parts}
    if is_a(inputs, Called):
        return Called(tuple(made.pop(i) for i in range(len(inputs.positional))), made)
    if is_of_user_class(type(inputs)) and all(made[key] is part for key, part in parts):
        return inputs  # without tensors: a class of the user's may be made otherwise
    if is_mapping(inputs):
        return made
    if not is_a(inputs, tuple | list):
        return with_parts(inputs, made)
    named = class_entry(type(inputs), "_fields") is not MISSING
    return type(inputs)(*made.values()) if named else type(inputs)(made.values())


def others_in(inputs: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of nested inputs that are not tensors, and the empty containers, by their path: the
    trace holds them as they were.
    """
    return {path: leaf for path, leaf in _leaves(inputs, name) if not is_a(leaf, Tensor)}


def leaves_in(inputs: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return `tensors_in` and `others_in` of one walk."""
    tensors, others = dict[str, Tensor](), dict[str, Any]()
    for path, leaf in _leaves(inputs, ""):
        (tensors if is_a(leaf, Tensor) else others)[path] = leaf
    return tensors, others


def _leaves(inputs: Any, name: str) -> Iterator[tuple[str, Any]]:
    parts = _parts(inputs)
    if parts is None or (not parts and name):  # an argument that is empty is given all the same
        yield name, inputs
        return
    for key, part in parts:
        yield from _leaves(part, _place(name, key))


def _place(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _parts(inputs: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a container with their keys, None for anything else.

    Targets and the scale follow the parts of the inputs.
    """
    if is_a(inputs, Scaled):
        return [*(_parts(inputs.inputs) or ()), (SCALE, inputs.scale)]
    if is_a(inputs, Labelled):
        return [*(_parts(inputs.inputs) or ()), (TARGETS, inputs.targets)]
    if is_a(inputs, Called):
        return [*enumerate(inputs.positional), *inputs.named.items()]
    found = container_parts(inputs)
    return object_parts(inputs) if found is None else found
