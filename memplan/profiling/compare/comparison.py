"""The comparison of planned iterations with eager PyTorch's, bit by bit, from the same random state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from ...guards.python_state import NUMPY_NUMBERS, PYTHON_NUMBERS, PythonState
from ...guards.unchanged import Before, changed_by, changing, copies, unchanged
from ...model.accumulated import SUM, accumulated
from ...model.attached import named_buffers
from ...model.iteration import Iteration, Scaled, scale_of, unscaled
from ...program.program import Program
from ...runtime.run.recovery import noted_as_undone
from ...steps.execute import IterationResult, PlannedStep
from ...torch_support.bits import same_bits
from ...tracing.trace_context import compiling, without_checkpoints
from .batch_of_update import take_sums
from .cost import Cost, EagerCost
from .eager import run_eager
from .host_updates import rounding, weights_on_host

ITERATIONS = 2
"""Number of iterations that are compared: what the first leaves, as optimizer states, the second reads."""

ITERATIONS_WITH_TRANSFERS = 3
"""Number of iterations if tensors are transferred: copies of one iteration go on in the following ones."""

REPEATS = 2
"""Number of repetitions of eager if it differs from the plan: is it equal to itself?"""

MOST_REPEATS = 8
"""Largest number of repetitions if it is not: a number may come out the same now and then."""

STEADY = 4
"""Differences up to so many times eager's own from run to run are taken for its own."""


class Comparison(NamedTuple):
    """Result of comparing planned iterations with eager PyTorch's.

    first: the first tensor that differs: `loss`, or a name among all that it makes or changes; or None.
    largest: the largest difference of any element in `first`.
    compared: how many tensors.
    compiling: eager took the path on which `torch.compiler.is_compiling()` is true, as the trace did.
    apart: how the two differ if eager takes its own path, None if it was not asked to take another.
    checkpoints_off: eager ran the functions of the model's own checkpoints once, as the trace did.
    spreads: the tensors in which eager differs from itself when the same iteration is repeated, and by how
        much at most; the largest first.
    suspects: what may make the difference.
    steady: eager drew no random numbers but PyTorch's, and changed nothing in Python's state any more once it
        had run: as far as it can be seen, its later iterations are like these.
    compiled: how exact compiled operations are, if there are any; they are compared with themselves without a
        plan.
    eager: cost of an iteration of eager PyTorch, None if it was not measured.
    on_host: number of weights that eager stepped on copies in host memory, as the plan does.
    rounded: weights and states in which updates on the host differ by rounding, and by how much at most; the
        largest first.
    """

    first: str | None
    largest: float
    compared: int
    compiling: bool = False
    apart: str | None = None
    checkpoints_off: bool = False
    spreads: tuple[tuple[str, float], ...] = ()
    suspects: tuple[str, ...] = ()
    steady: bool = False
    compiled: str | None = None
    eager: Cost | None = None
    on_host: int = 0
    rounded: tuple[tuple[str, float], ...] = ()

    @property
    def equal(self) -> bool:
        return self.first is None

    @property
    def spread(self) -> float:
        """Return the largest difference of eager from itself."""
        return self.spreads[0][1] if self.spreads else 0.0

    @property
    def by(self) -> str:
        return f"by up to {self.largest:.3g}" if isfinite(self.largest) else "beyond measure"

    @property
    def difference(self) -> str:
        """Describe the difference: `loss differs from eager by up to 0.1 (suspects: …)`."""
        why = f" (suspects: {'; '.join(self.suspects)})" if self.suspects else ""
        return f"{self.first} differs from eager {self.by}{why}"

    def __str__(self) -> str:
        if self.first is not None:
            return self.difference
        if self.compiled is not None:
            return f"{self.compared} tensors bitwise equal to the same without a plan; {self.compiled}"
        where = " on the path for torch.compile" if self.compiling else ""
        where += " without the model's own checkpoints" if self.checkpoints_off else ""
        where += f" with {self.on_host} weights stepped on the host, as planned" if self.on_host else ""
        if self.rounded:
            return (
                f"{self.compared} tensors equal to eager{where}, {len(self.rounded)} of them but for the "
                f"rounding of one update on the host: {_listed(self.rounded)}"
            )
        if self.spreads:
            return (
                f"{self.compared} tensors equal to eager{where}, {len(self.spreads)} of them within its own "
                f"differences from run to run: {_listed(self.spreads)}"
            )
        return f"{self.compared} tensors bitwise equal to eager{where}"


def compared_iterations(step: PlannedStep) -> tuple[PlannedStep, ...]:
    """Return the iterations of a step that show all that its iterations do differently."""
    return (step,) * (ITERATIONS if step.cycle is None else ITERATIONS_WITH_TRANSFERS)


def compare(
    iteration: Iteration, step: PlannedStep, iterations: Sequence[PlannedStep] | None = None
) -> Comparison:
    """Run iterations of both from one random state, and compare losses, gradients and buffers bit by bit.

    The random state goes on from each iteration to the next. With updates, weights and states are compared
    too.

    iterations: the iterations, by default those of `compared_iterations`; others for an update over several
        batches. Only the step itself updates; what is left in the sums at the end is compared too.

    All that the iterations can change is afterwards as it was (guards/unchanged.py). If eager differs, it is
    compared on the path for `torch.compile` if the trace took it, and without the model's own checkpoints,
    which the plan replaces. If eager is not equal to itself either, differences of that size count as equal.
    A loss whose scale makes gradients infinite, so that updates are skipped, is not scaled.
    """
    iterations = compared_iterations(step) if iterations is None else iterations
    on_host = weights_on_host(step)
    planned, outcomes, of_updates = _planned(iteration, step, iterations)
    scale = scale_of(iteration.inputs)
    # At scale 1 the gradients are finite, and updates happen that can be compared.
    if scale is not None and scale > 1 and any(outcome.infinite for outcome in outcomes):
        inputs = Scaled(unscaled(iteration.inputs), torch.ones_like(scale))
        return compare(iteration._replace(inputs=inputs), step, iterations)
    plainly = partial(_eager, iteration, step, [each is step for each in iterations], on_host=on_host)
    elsewhere = len(on_host) if step.program.device.type != "cpu" else 0
    # Only iterations that all update cost the same.
    measuring = EagerCost(step.program) if set(iterations) == {step} else None
    found: Comparison | None = None
    for flag in (False, True) if step.program.compiling else (False,):
        apart = f"{found.first} {found.by}" if flag and found is not None else None
        for checkpoints_off in (False, True):
            with compiling(flag), without_checkpoints() if checkpoints_off else nullcontext():
                eager, changes, steady = plainly(None if flag or checkpoints_off else measuring)
            comparison = difference(eager, planned)._replace(
                compiling=flag,
                apart=apart,
                checkpoints_off=checkpoints_off,
                steady=steady,
                eager=measuring and measuring.cost,
                on_host=elsewhere,
            )
            if comparison.equal:
                return comparison
            # The first comparison is the one to report: with eager as the user runs it.
            found = found or comparison._replace(suspects=_suspects(iteration, changes))
            if not checkpoints_off:
                found = _within_its_own(lambda: plainly()[0], eager, planned, of_updates) or found
                if found.equal:
                    cost = measuring and measuring.cost
                    return found._replace(compiling=flag, apart=apart, steady=steady, eager=cost)
    assert found is not None
    if on_host and set(iterations) == {step}:
        return _rounded(iteration, step, on_host, found._replace(steady=False, on_host=elsewhere))
    return found


def _rounded(
    iteration: Iteration, step: PlannedStep, on_host: frozenset[str], found: Comparison
) -> Comparison:
    """Compare one planned iteration after none, one and two of eager, up to the rounding of host updates.

    All else must be the same bits: both start from the same weights.

    found: what the comparison of several iterations says; returned if rounding does not explain it.
    """
    differences: dict[str, float] = {}
    for count in range(ITERATIONS_WITH_TRANSFERS):
        with _alone(iteration, step, ()):
            for _ in range(count):
                run_eager(iteration, on_host=on_host)
            before = copies(changing(iteration))
            eager = left_by(iteration, step.program, run_eager(iteration, on_host=on_host))
            expected = everything(iteration, step.program, [eager])
        with _alone(iteration, step, ()):
            for _ in range(count):
                run_eager(iteration, on_host=on_host)
            outcome = step.run(iteration.inputs)
            step.restore_to_device()
            planned = everything(iteration, step.program, [outcome])
        if expected.keys() != planned.keys():
            return found
        for name, tensor in expected.items():
            if same_bits(tensor, planned[name]):
                continue
            # A state is named by its weight, a dot and its own name.
            of_update = any(name == weight or name.startswith(f"{weight}.") for weight in on_host)
            if not of_update or name.endswith(_GRADIENT):
                return found
            largest, explained = rounding(before, expected, planned, name)
            if not explained:
                return found._replace(first=f"{name}, updated on the host,", largest=largest)
            differences[name] = max(largest, differences.get(name, 0.0))
    by_size = sorted(differences.items(), key=lambda one: -one[1])
    return found._replace(first=None, largest=0.0, rounded=tuple(by_size), suspects=())


def between(iteration: Iteration, one: Sequence[PlannedStep], other: Sequence[PlannedStep]) -> Comparison:
    """Compare the iterations of two plans of one program with each other, as `compare` does with eager's."""
    first, second = (_planned(iteration, iterations[-1], iterations)[0] for iterations in (one, other))
    return difference(first, second)


def _planned(
    iteration: Iteration, step: PlannedStep, iterations: Sequence[PlannedStep]
) -> tuple[dict[str, Tensor], list[IterationResult], set[str]]:
    """Run planned iterations, then undo them.

    Returns all that they make or change, by name, the outcome of each, and the names of what updates change.
    """
    with _alone(iteration, step, [each.program for each in iterations]):
        outcomes = [each.run(iteration.inputs) for each in iterations]
        for each in {*iterations}:
            each.restore_to_device()
        return everything(iteration, step.program, outcomes), outcomes, {*changing(iteration)}


def _eager(
    iteration: Iteration,
    step: PlannedStep,
    updating: Sequence[bool],
    measuring: EagerCost | None = None,
    *,
    on_host: frozenset[str] = frozenset(),
) -> tuple[dict[str, Tensor], list[str], bool]:
    """Run iterations of eager PyTorch, then undo them.

    updating: by iteration, whether it updates the weights.
    on_host: names of the weights that are updated on copies in host memory.

    Returns all that they make or change, by name; the paths of what they change in Python's state; and
    whether eager is `steady`, see Comparison.
    """
    sums: dict[str, Tensor] = {}
    firsts: dict[Tensor, Tensor] = {}
    outcomes: list[IterationResult] = []
    since: PythonState | None = None
    with _alone(iteration, step) as before:
        for last in updating:
            run = partial(run_eager, iteration, sums, firsts, last=last, on_host=on_host)
            outcome = run() if measuring is None else measuring.run(run)
            outcomes.append(left_by(iteration, step.program, outcome))
            for name in [name for name in sums if (name, SUM) not in step.program.states]:
                del sums[name]
            # What the first iteration changes once does not count, only what later ones still change.
            since = since or PythonState(iteration, tensors=True)
        found = everything(iteration, step.program, outcomes, before.changed())
        found |= copies({f"{name}.{SUM}": x for name, x in sums.items()})
        steady = since is not None and not since.changes() and not before.state.drawn()
        return found, before.state.changes_of_code(), steady


@contextmanager
def _alone(iteration: Iteration, step: PlannedStep, programs: Collection[Program] = ()) -> Generator[Before]:
    """Run iterations that leave no trace; the first of them is the first of its update.

    programs: the iterations' programs; none for eager's.
    """
    with noted_as_undone(), unchanged(iteration, step.program.device, programs) as before:
        if iteration.updates is not None and accumulated(iteration.updates.optimizer) is not None:
            take_sums(iteration)
        yield before


def _within_its_own(
    repeat_eager: Callable[[], Mapping[str, Tensor]],
    eager: Mapping[str, Tensor],
    planned: Mapping[str, Tensor],
    of_updates: Collection[str],
) -> Comparison | None:
    """Compare the two up to the differences of eager from itself, when it is repeated.

    Returns None if eager is equal to itself, or if the two differ all the same. In a tensor that comes out
    the same each time the plan's must be the same bits. Rounding alone makes small differences from run to
    run: a large one is another computation, not a spread.

    of_updates: weights and states, in which a small difference may become large, since Adam divides by it.
    """
    spreads = dict.fromkeys(eager, 0.0)
    for repeat in range(1, MOST_REPEATS + 1):
        other = repeat_eager()
        if other.keys() != eager.keys() or planned.keys() != eager.keys():
            return None
        for name, tensor in eager.items():
            if not same_bits(tensor, other[name]):
                spreads[name] = max(spreads[name], _largest_difference(tensor, other[name]))
        if repeat < REPEATS:
            continue
        if not any(spreads.values()):
            return None
        # More repeats only widen eager's own spread: enough as soon as the plan is within it.
        if all(_close(tensor, planned[name], STEADY * spreads[name]) for name, tensor in eager.items()):
            break
    else:
        return None
    rounded = {name: tensor for name, tensor in eager.items() if name not in of_updates}
    if not all(map(isfinite, spreads.values())) or not all(
        spreads[name] <= most for name, most in _roundings(rounded).items()
    ):
        return None
    by_size = sorted(((name, spread) for name, spread in spreads.items() if spread), key=lambda one: -one[1])
    return Comparison(None, 0.0, len(eager), spreads=tuple(by_size))


def _roundings(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return per tensor the difference that rounding alone can make.

    Gradients are measured by the largest of all: one that should be zero consists of nothing but roundings.
    """
    sizes = {name: float(x.double().abs().max()) if x.numel() else 0.0 for name, x in tensors.items()}
    steepest = max((size for name, size in sizes.items() if name.endswith(_GRADIENT)), default=0.0)
    return {
        # √eps: rounding may take half of the digits over an iteration.
        name: (sqrt(torch.finfo(tensor.dtype).eps) if tensor.dtype.is_floating_point else 0.0)
        * (steepest if name.endswith(_GRADIENT) else sizes[name])
        for name, tensor in tensors.items()
    }


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return same_bits(one, other) or _largest_difference(one, other) <= tolerance


def _suspects(iteration: Iteration, changes: Sequence[str]) -> tuple[str, ...]:
    """List what an iteration does that a plan of it does not."""
    draws = [f"it draws {numbers}" for numbers in (PYTHON_NUMBERS, NUMPY_NUMBERS) if numbers in changes]
    changed = [change for change in changes if change not in (PYTHON_NUMBERS, NUMPY_NUMBERS)]
    more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
    named = [f"it changes {', '.join(changed[:_MOST_NAMED])}{more}"] if changed else []
    return (*draws, *named)


def _listed(differences: Sequence[tuple[str, float]]) -> str:
    named = ", ".join(f"{name} by {size:.3g}" for name, size in differences[:_MOST_NAMED])
    more = f" and {len(differences) - _MOST_NAMED} more" if len(differences) > _MOST_NAMED else ""
    return f"{named}{more}"


_MOST_NAMED = 3
_GRADIENT = ".grad"


def difference(eager: Mapping[str, Tensor], planned: Mapping[str, Tensor]) -> Comparison:
    if unmatched := sorted(eager.keys() ^ planned.keys()):
        return Comparison(unmatched[0], float("inf"), len(eager))
    for name, tensor in eager.items():
        if not same_bits(tensor, planned[name]):
            return Comparison(name, _largest_difference(tensor, planned[name]), len(eager))
    return Comparison(None, 0.0, len(eager))


def left_by(iteration: Iteration, program: Program, eager: IterationResult) -> IterationResult:
    """Return the outcome without the gradients that updates use up: eager keeps them until the next
    `zero_grad`.
    """
    if iteration.updates is None:
        return eager
    return eager._replace(gradients={name: eager.gradients[name] for name in program.gradients})


def everything(
    iteration: Iteration, program: Program, outcomes: list[IterationResult], changed: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Collect all that iterations make or change: losses, outputs, gradients, buffers, weights, states.

    changed: names of parameters that have changed, in addition to those that the program changes.
    """
    *before, last = outcomes
    named = {f"loss {number}": outcome.loss for number, outcome in enumerate(before, start=1)}
    norms = [outcome.grad_norm for outcome in outcomes if outcome.grad_norm is not None]
    named |= {"loss": last.loss, "the norm of the gradients": norms[-1] if norms else None}
    losses = {name: tensor for name, tensor in named.items() if tensor is not None}
    there = named_buffers(iteration.module)
    buffers = {name: there[name].clone() for name in program.buffers}
    parameters = dict(iteration.module.named_parameters())
    of_forward = {name: parameters[name] for name in (*changed_by(program), *changed) if name in parameters}
    named = {f"{name}{_GRADIENT}": tensor for name, tensor in last.gradients.items()}
    # Forward that calls `x.requires_grad_()` on the batch has eager write `.grad` there, which no step does.
    of_inputs = last.input_gradients if iteration.purpose == "part" else {}
    named |= {f"input {name}{_GRADIENT}": tensor for name, tensor in of_inputs.items()}
    outputs = {f"output {name}".strip(): tensor for name, tensor in last.outputs.items()}
    return losses | outputs | named | buffers | copies(of_forward | changing(iteration))


def _largest_difference(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or one.numel() == 0:
        return float("inf")
    return float((one.double() - other.to(one.device).double()).abs().max())
