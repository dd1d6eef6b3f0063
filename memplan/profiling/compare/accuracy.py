"""Accuracy of compiled operations compared with PyTorch's own, and a check that iterations with them agree.

Inductor adds up in another order than PyTorch's kernels, so the bits differ. Neither is exact. What counts is
that the one is not much further from exact than the other. Each kernel is checked alone, on what an iteration
really passes to it: over a whole iteration one rounding may turn the sign that a ReLU tests, and then the
gradients after it could not be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...devices.calls.randomness import generators_kept
from ...graphs.errors import DifferenceError
from ...graphs.graph import Kind, Phase
from ...model.iteration import Iteration, Scaled, scale_of, unscaled
from ...program.handover import HANDOVER, example_cotangents
from ...program.program import Call, Operation, Program, refs, values_read
from ...torch_support.below_autograd import as_traced
from ...tracing.output_layouts import residents
from ..fusion.fused import Kernels, Replacement
from ..fusion.members import Members, called

MOST = 4
"""Largest error of a kernel's result, as a multiple of PyTorch's own."""
ROUNDINGS = 16
"""Number of roundings allowed, of one number as large as the whole result; or one of each term, if the
result is a sum.
"""
SAME = 0.01
"""Largest difference of a result of the iteration, relative to it, of a gradient relative to the largest
gradient.

What is larger is another computation, except up to `MOST` times what eager's result changes by if inputs and
weights are off by a rounding.
"""

FEW_DIGITS = 16
"""Number of roundings that `SAME` is at least: in bfloat16 eager's own sum may be a per cent off."""


class Accuracy(NamedTuple):
    """Error of compiled kernels compared with eager's.

    compared: number of kernels' results.
    ratio: their error against float64 over eager's own (root mean squares).
    """

    compared: int
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.compared} results of kernels as exact as eager's (error {self.ratio:.2f} times its own)"
        )


def accuracy(iteration: Iteration, uncompiled: Program, compiled: Program, kernels: Kernels) -> Accuracy:
    """Run one iteration without its updates by each program, from one random state; it changes nothing.

    Raises DifferenceError if a kernel's result is more than `MOST` times as far from that in float64 as
    eager's is, up to roundings, or if a result of the iteration is another.
    """
    if scale_of(iteration.inputs) is not None:
        found = _Run(uncompiled, iteration).results()
        if not all(bool(one.isfinite().all()) for one in found.values()):  # an update would be skipped
            scaled = Scaled(unscaled(iteration.inputs), torch.ones((), device="cpu"))
            return accuracy(iteration._replace(inputs=scaled), uncompiled, compiled, kernels)
    own = _Run(uncompiled, iteration, kernels)
    expected, found = own.results(), _Run(compiled, iteration).results()
    differences = {name: _norm(found[name].double() - one.double()) for name, one in expected.items()}
    limits = _limits(uncompiled, expected)
    # `not <=`: nan is another result too.
    if any(not differences[name] <= limits[name] for name in expected):
        # It costs one more iteration, so only if the usual limits do not suffice.
        nudged = _Run(uncompiled, iteration, nudged=True).results()
        limits = {
            n: max(limits[n], MOST * _norm(nudged[n].double() - one.double())) for n, one in expected.items()
        }
    for name, difference in differences.items():
        if not difference <= limits[name]:
            raise DifferenceError(f"{name} is another: {difference:.3g} from eager's")
    return own.accuracy()


def _limits(program: Program, results: Mapping[str, Tensor]) -> dict[str, float]:
    sizes = {name: _norm(one) for name, one in results.items()}
    largest = max((size for name, size in sizes.items() if _is_gradient(program, name)), default=0.0)
    return {
        n: _same(results[n]) * (max(size, largest) if _is_gradient(program, n) else size)
        for n, size in sizes.items()
    }


def _same(result: Tensor) -> float:
    """Return the largest relative difference of a result."""
    floating = result.dtype.is_floating_point
    return max(SAME, FEW_DIGITS * torch.finfo(result.dtype).eps) if floating else SAME


def _is_gradient(program: Program, name: str) -> bool:
    return any(one.name == name and one.kind == Kind.PARAMETER_GRADIENT for one in program.storages)


class _Run:
    """A run of the operations one by one, without those of updates.

    kernels: each is called too, once all that it replaces has run, and compared.
    nudged: inputs and weights are off by one rounding.
    """

    def __init__(
        self,
        program: Program,
        iteration: Iteration,
        kernels: Kernels | None = None,
        *,
        nudged: bool = False,
    ) -> None:
        self._program = program
        parameters = dict(iteration.module.named_parameters())
        given = residents(program, iteration) | {v: parameters[n] for n, v in program.parameters.items()}
        self._operations = list(_without_updates(program))
        changed = {x for operation in self._operations for x in operation.mutates}
        # What an operation changes in place is copied; the module keeps its own values.
        copied = {v for v in given if nudged or program.values[v].storage in changed}
        given = {v: t.detach().clone() if v in copied else t.detach() for v, t in given.items()}
        self._known = {v: _nudged(t) if nudged else t for v, t in given.items()}
        made = {x for operation in self._operations for x in operation.writes}
        own = {operation.name for operation in self._operations}
        updates = (op for op in program.operations if op.name not in own)
        wanted = (*program.returned, *(value for op in updates for value in values_read(op.call)))
        self._wanted = [value for value in wanted if program.values[value].storage in made]
        self._left = Counter(x for operation in self._operations for x in operation.reads)
        self._left.update(program.values[value].storage for value in self._wanted)
        self._at: dict[str, list[tuple[Members, Replacement]]] = {}
        for members, kernel in (kernels or {}).values():
            self._at.setdefault(members.operations[-1].name, []).append((members, kernel))
            self._left.update(self._storages((*members.inputs, *members.outputs)))
        self._errors: list[tuple[float, float]] = []

    def results(self) -> dict[str, Tensor]:
        """Return by storage name what the iteration leaves, or its updates read."""
        device = self._program.device
        with generators_kept(self._program.random_sources), as_traced(device):
            for operation in self._operations:
                self._run(operation)
                for members, kernel in self._at.get(operation.name, ()):
                    self._compare(members, kernel)
            return {self._name(value): self._value(value) for value in self._wanted}

    def accuracy(self) -> Accuracy:
        own, other = (sqrt(sum(pair[column] ** 2 for pair in self._errors)) for column in (0, 1))
        return Accuracy(len(self._errors), other / own if own else 1.0)

    def _compare(self, members: Members, kernel: Replacement) -> None:
        given = [self._value(value) for value in members.inputs]
        # Exact: the same calls in float64.
        exact = members.run([_widened(tensor) for tensor in given], _called_wide)
        most = max((_norm(tensor) for tensor in given), default=0.0)
        terms = max((tensor.numel() for tensor in given), default=1)
        for value, true, made in zip(members.outputs, exact, kernel(*given), strict=True):
            eager = self._value(value)
            found = [_norm(each - true) for each in (eager, made)]
            rounding = torch.finfo(eager.dtype).eps if eager.dtype.is_floating_point else 0.0
            # Terms per result: their roundings add up like a random walk, with the root of their number.
            summed = sqrt(terms / max(eager.numel(), 1)) * most
            if not found[1] <= MOST * found[0] + rounding * max(ROUNDINGS * _norm(true), summed):
                raise DifferenceError(
                    f"{self._name(value)} is {found[1]:.3g} from exact, eager's own {found[0]:.3g}"
                )
            if size := _norm(true):
                # Relative to the result, so that large results do not outweigh small ones.
                self._errors.append((found[0] / size, found[1] / size))
        self._let_go(self._storages((*members.inputs, *members.outputs)))

    def _run(self, operation: Operation) -> None:
        call = operation.call
        made: Sequence[Any]
        if call.target is HANDOVER:  # the caller's part, with gradients that both runs get
            outputs = {str(value): self._value(value) for value in refs(call.arguments[0])}
            made = [*example_cotangents(outputs).values()]
        else:
            made = called(call, {value: self._value(value) for value in values_read(call)})
        for value, result in zip(call.outputs, made, strict=True):
            if value is not None and self._left[self._program.values[value].storage]:
                self._known[value] = result
        self._let_go(operation.reads)

    def _let_go(self, storages: Iterable[int]) -> None:
        """Count one use of each storage as done, and drop the values of those that are not used any more."""
        for x in storages:
            self._left[x] -= 1
            if not self._left[x]:
                for value in [v for v in self._known if self._program.values[v].storage == x]:
                    del self._known[value]

    def _storages(self, values: Iterable[int]) -> set[int]:
        return {self._program.values[value].storage for value in values}

    def _name(self, value: int) -> str:
        return self._program.storages[self._program.values[value].storage].name

    def _value(self, value: int) -> Tensor:
        if value not in self._known:
            call = self._program.views[value]
            tensors = {base: self._value(base) for base in refs(call.arguments)}
            for output, made in zip(call.outputs, called(call, tensors), strict=True):
                if output is not None:
                    self._known[output] = made
        return self._known[value]


def _without_updates(program: Program) -> Iterator[Operation]:
    """Yield the operations that need no state of the optimizer, its sums over batches included."""
    gone = {x for x, storage in enumerate(program.storages) if storage.kind == Kind.OPTIMIZER_STATE}
    for operation in program.operations:
        if operation.phase == Phase.UPDATE or not gone.isdisjoint((*operation.reads, *operation.mutates)):
            gone.update(operation.writes)
        else:
            yield operation


def _called_wide(call: Call, tensors: Mapping[int, Tensor]) -> Sequence[Any]:
    arguments, keywords = _wide_types(call.arguments), _wide_types(call.keywords)
    return called(Call(call.target, arguments, keywords, call.outputs, call.several), tensors)


def _wide_types(argument: Any) -> Any:
    if isinstance(argument, torch.dtype):
        return torch.float64 if argument.is_floating_point else argument
    if isinstance(argument, Mapping):
        return {name: _wide_types(part) for name, part in argument.items()}
    if isinstance(argument, tuple | list):
        return type(argument)(map(_wide_types, argument))
    return argument


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def _nudged(tensor: Tensor) -> Tensor:
    """Return the tensor with every second number one rounding larger."""
    if not tensor.dtype.is_floating_point:
        return tensor
    every_second = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape) % 2
    return (tensor * (1 + torch.finfo(tensor.dtype).eps * every_second)).to(tensor.dtype)


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())
