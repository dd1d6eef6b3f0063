"""The part of an iteration that Python does: lists, counters and texts of the values that its code reads.

    losses.append(loss.item())             a figure for a log
    if tokens > 0: rate = right / tokens   a branch that leads to no part of the loss

A plan has no Python in it. So the code runs once more after each planned iteration, with the values that this
one has computed, as eager PyTorch's would have read them. Nothing is computed a second time: each call of
torch's functions that the trace has seen (api_calls.py) returns what it did then, a result of the plan if
its values are needed, else a fake tensor. Calls that the trace has not seen, in a branch that it did not
take, are made on results of the plan.

The loss must be the tensor that the trace has found, and each change in place one of the trace's: then the
plan is right for the iteration whatever the code has read. A trace tries this with several answers to each
question, and refuses the line that leads to another loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..graphs.errors import MemplanError, MismatchError
from ..guards.reads.contents import is_plain
from ..model.iteration import Inputs, Iteration, forward, tensors_in, with_tensors
from ..program.outputs import Output
from ..torch_support.torch_autograd import functions_applied
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.torch_tensors import version_of
from ..torch_support.torch_trees import tensors_among, tree_map
from ..torch_support.unsupported import is_value_dependent, users_line, warn_user
from .api_calls import (
    Calls,
    Made,
    Question,
    UnknownTensorError,
    filled,
    key_of,
    on_values,
)
from .trace_context import users_code

Result = tuple[Any, ...]
"""Which of a trace's tensors are loss, outputs and buffers at the end; None for any other."""

Named = Mapping[str, Tensor]


class LeftError(Exception):
    """Error of code that has left the way of the trace: it computes with weights what the trace has not."""


class DecidingError(Exception):
    """Error of code whose loss follows from a value that it reads.

    questions: those that may be meant.
    """

    def __init__(self, questions: Sequence[Question]) -> None:
        super().__init__("the loss follows from a value")
        self.questions = questions


class Holder(nn.Module):
    """Module whose forward runs anything while the parameters and buffers of `module` are replaced."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, run: Callable[[nn.Module], Any]) -> Any:
        return run(self.module)

    __call__ = forward  # past the user's hooks for all modules: this is none of the user's


class Replay(TorchFunctionMode):
    """Mode in which the traced code runs once more: its calls return what they did in the trace.

    shown: real tensors that are returned instead of the trace's, by number.
    guess: the answer to a question, by its number (None if a call is not the trace's); without it, values
        that are not shown are unknown.
    needed: the numbers of tensors whose values the code has asked for.
    other: the line of the first call that changes a tensor and is not the trace's.
    left: whether the code has made a call on tensors of the trace that the trace has not made.
    """

    def __init__(
        self,
        calls: Calls,
        weights: Collection[int],
        shown: Mapping[int, Tensor],
        guess: Callable[[int | None], float] | None = None,
    ) -> None:
        super().__init__()
        self._weights = weights
        self.needed: set[int] = set()
        self.other: str | None = None
        self.place, self.left = "", False
        self._calls, self._shown, self._guess = calls, shown, guess
        self._numbers = {id(tensor): number for number, tensor in shown.items()}
        self._before: Counter[Any] = Counter()
        self._changed: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, func, args, kwargs or {})

    def call(self, name: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return what the trace's call with this name and these arguments did, or make the call."""
        try:
            key = key_of((name, args, kwargs), self._number)
        except UnknownTensorError:
            if any(tensor.requires_grad for tensor in tensors_among((args, kwargs))):
                self.place = self.place or users_line()
            return self._on_values(func, args, kwargs)
        made = self._calls.find(key, self._before[key])
        if made is None:
            return self._unknown(func, args, kwargs)
        self._before[key] += 1
        if made.asked is not None:
            return self._on_values(func, args, kwargs, made.asked)
        if made.changes:
            self._changed.add(made.number)
        return self._result(made)

    def number(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor of the trace; None for any other."""
        found = self._numbers.get(id(tensor))
        return self._calls.numbers.get(id(tensor)) if found is None else found

    def shown(self, number: int, fake: Tensor) -> Tensor:
        """Return what is shown instead of a tensor of the trace, which may be itself."""
        return self._shown.get(number, fake)

    @property
    def complete(self) -> bool:
        """Tell whether each change in place was made, and no other."""
        return self.other is None and self._changed == self._calls.changing

    def _number(self, tensor: Tensor) -> int:
        found = self.number(tensor)
        if found is None:
            raise UnknownTensorError
        return found

    def _result(self, made: Made) -> Any:
        if made.nests:
            return tree_map(self._seen, made.result)
        return self._seen(made.result)

    def _seen(self, leaf: Any) -> Any:
        return self._shown.get(self._calls.numbers[id(leaf)], leaf) if isinstance(leaf, Tensor) else leaf

    def _unknown(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call that the trace has not made, on tensors of the trace."""
        self.place = self.place or users_line()
        tensors = tensors_among((args, kwargs))
        if all(isinstance(tensor, FakeTensor) for tensor in tensors):
            try:
                made = func(*args, **kwargs)
            except Exception as error:
                if not is_value_dependent(error):
                    raise
            else:
                if not tensors or not tensors_among(made):
                    return made  # a question for a form
        self.left = True
        return self._on_values(func, args, kwargs)

    def _on_values(self, func: Callable[..., Any], args: Any, kwargs: Any, asked: int | None = None) -> Any:
        values: dict[int, Tensor] = {}

        def value(leaf: Tensor) -> Tensor:
            if not isinstance(leaf, FakeTensor):
                values[id(leaf)] = leaf
            elif id(leaf) not in values:
                values[id(leaf)] = self._value(leaf, asked)
            return values[id(leaf)]

        before = [(tensor, version_of(value(tensor))) for tensor in tensors_among((args, kwargs))]
        made = on_values(func, args, kwargs, value)
        for tensor, version in before:
            if self.number(tensor) is not None and version_of(value(tensor)) != version:
                self.other = self.other or users_line() or "a line "
        return made

    def _value(self, fake: FakeTensor, asked: int | None) -> Tensor:
        number = self._calls.number(fake)
        if number in self._weights and asked is None:
            raise LeftError  # else a whole model may follow
        self.needed.add(number)
        if self._guess is not None:
            return filled(fake, self._guess(asked), number)
        warn_user(
            f"{users_line()}a value that no iteration before has asked for is not among the plan's results: "
            "it is logged as nan, or 0"
        )
        return filled(fake, nan if fake.is_floating_point() else 0.0)


@dataclass
class HostPart:
    """The code of an iteration, run once more after each planned one.

    parameters, buffers, inputs: the fakes of the trace.
    expected: what its run in the trace has led to.
    first_guess: the answer to each question in the trace.
    kept: the numbers of the tensors that are results of the plan, by the result's name.
    printed: whether the code writes text.
    """

    iteration: Iteration
    calls: Calls
    parameters: Named
    buffers: Named
    inputs: Named
    expected: Result
    first_guess: float
    kept: dict[str, int] = field(default_factory=dict[str, int])
    printed: bool = False

    def run(self, inputs: Inputs, results: Mapping[str, Tensor]) -> None:
        """Run the code for an iteration that has just been run.

        inputs: the batch.
        results: by name, those in `kept`.

        Raises MismatchError if the loss would be another, and what the code raises.
        """
        # The plan may have left a result in another memory.
        shown = {n: results[name].to(self.calls.tensors[n].device) for name, n in self.kept.items()}
        replay = self.on(tensors_in(inputs), shown)
        if not self.same(replay, inputs, raises=True):
            raise MismatchError(
                f"{replay.other or replay.place or self._places()}the code takes another way than in the "
                "planned iteration, by values that it reads, and the loss would be another: use torch.where, "
                "or compute that part in the training loop"
            )

    def on(self, batch: Named, shown: Mapping[int, Tensor]) -> Replay:
        """Return the mode of an iteration with this batch and these results."""
        numbers = {name: self.calls.numbers[id(fake)] for name, fake in self.inputs.items()}
        once = Counter(map(id, batch.values()))  # one that is given twice was two in the trace
        given = {n: batch[name] for name, n in numbers.items() if once[id(batch[name])] == 1}
        return Replay(self.calls, self._weights(), {**given, **shown})

    def guessing(self, guess: Callable[[int | None], float]) -> Replay:
        return Replay(self.calls, self._weights(), {}, guess)

    def _weights(self) -> set[int]:
        return {self.calls.numbers[id(tensor)] for tensor in self.parameters.values()}

    def same(self, replay: Replay, inputs: Inputs | None = None, *, raises: bool = False) -> bool:
        """Tell whether the code leads to the same loss.

        inputs: the batch; None for the trace's.
        raises: raise what the code raises; else that counts as the same, if it does so on the way of the
            trace: eager PyTorch would raise it, too. A loss that can't be planned is another one.
        """
        inputs = self.iteration.inputs if inputs is None else inputs
        given = {n: replay.shown(self.calls.numbers[id(fake)], fake) for n, fake in self.inputs.items()}
        try:
            found = self._replayed(replay, with_tensors(inputs, given))
        except LeftError:
            return False
        except Exception as error:
            if raises and not isinstance(error, MemplanError):
                raise
            return not (replay.left or isinstance(error, MemplanError))
        return found == self.expected and replay.complete

    def _replayed(self, replay: Replay, inputs: Inputs) -> Result:
        tensors = {**self.parameters, **self.buffers}
        state = {f"module.{name}": tensor for name, tensor in tensors.items()}

        def run(module: nn.Module) -> tuple[Tensor | None, Output]:
            with functions_applied(replay.call), replay:
                return forward(self.iteration, module, inputs)

        with users_code(as_compiled=False), torch.set_grad_enabled(self.iteration.trains):
            loss, output = torch.func.functional_call(Holder(self.iteration.module), state, (run,))
        return result_of(replay.number, loss, output, [state[f"module.{name}"] for name in self.buffers])

    def _places(self) -> str:
        return "".join(dict.fromkeys(question.place for question in self.calls.questions))


def result_of(
    number: Callable[[Tensor], int | None],
    loss: Tensor | None,
    output: Output,
    buffers: Sequence[Tensor],
) -> Result:
    """Return what a run of the code has led to. number: of a tensor of the trace, None for any other."""
    tensors = [number(tensor) for tensor in (*output.tensors.values(), *buffers)]
    values = repr([*filter(is_plain, output.rest)])
    return loss if loss is None else number(loss), *tensors, values
