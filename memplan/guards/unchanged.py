"""Iterations that leave no trace: whatever they can change is put back.

    Python's state       attributes, containers, closures, random generators, tensors among them
    tensors              parameters, frozen ones too, buffers, inputs, the optimizer's states
    the optimizer        which states it has, the numbers of its groups
    `.grad`              of tensors that are not parameters of the module: those of a loss function
    generators           of PyTorch, on the host and on the device

after success, after an exception and after Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ..devices.calls.randomness import restore_generator, save_generator
from ..graphs.errors import NOT_PUT_BACK
from ..model.attached import named_buffers
from ..model.iteration import Iteration, tensors_in
from ..program.program import Program
from ..torch_support.interrupts import deferred_signals, open_to_signals
from ..torch_support.raw import is_a
from .kept import kept_optimizer
from .python_state import PythonState
from .saved import SavedGradients, SavedTensor, run_all


class Before:
    """The state before the iterations.

    state: Python's.
    tensors: those that are copied, by name.
    """

    def __init__(
        self, state: PythonState, tensors: Mapping[str, SavedTensor], steps: list[Callable[[], None]]
    ) -> None:
        """Keep the steps that put it back."""
        self.state, self.tensors = state, tensors
        self._steps = steps

    def changed(self) -> list[str]:
        """Return the names of the tensors that are different now."""
        return [name for name, tensor in self.tensors.items() if tensor.has_changed()]

    def put_back(self) -> None:
        run_all(self._steps)

    def keep(self) -> None:
        """Keep what was changed since it was put back, beyond the end of the context."""
        self._steps.clear()


@contextmanager
def unchanged(
    iteration: Iteration, device: torch.device, programs: Collection[Program] = ()
) -> Generator[Before]:
    """Put back all that the iterations within change.

    programs: what they run. Then of parameters, buffers, inputs and states only those are copied that an
    operation changes. Without any, as for eager PyTorch, all are.

    Tensors that a failed iteration has lost, between its updates or as it moved them, have their values of
    before, too. What has failed is raised, whatever fails after it.
    """
    with deferred_signals():
        # A set: on the CPU both are one. Models on a GPU may draw on the CPU too.
        generators = {each: save_generator(each) for each in {torch.device("cpu"), device}}
        state = PythonState(iteration, tensors=True)
        optimizer = [] if iteration.updates is None else kept_optimizer(iteration.updates.optimizer)
        tensors = {
            name: SavedTensor(tensor, keep_memory=not programs)
            for name, tensor in _changeable(iteration, programs).items()
        }
        gradients = SavedGradients(_of_loss(iteration, state.tensors))
        steps: list[Callable[[], None]] = [
            state.put_back,
            *(entries.put_back for entries in optimizer),
            *(tensor.put_back for tensor in tensors.values()),
            gradients.put_back,
            *(partial(restore_generator, each, numbers) for each, numbers in generators.items()),
        ]
        before = Before(state, tensors, steps)
        try:
            with open_to_signals(first_interrupt=True):
                yield before
        except BaseException as error:
            try:
                before.put_back()
            except BaseException as other:  # the first says what was wrong
                error.add_note(f"{NOT_PUT_BACK}: {type(other).__name__}: {other}")
            raise
        before.put_back()


def residents_of(iteration: Iteration) -> dict[str, Tensor]:
    """Return the module's parameters and buffers, the inputs and the optimizer's states, by name."""
    module = iteration.module
    found: dict[str, Tensor] = {**dict(module.named_parameters()), **named_buffers(module)}
    found |= {f"the input {name}": tensor for name, tensor in tensors_in(iteration.inputs).items()}
    if iteration.updates is not None:
        found |= _states_of(iteration.module, iteration.updates.optimizer)
    return found


def _states_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's states, and the numbers of its groups that are tensors."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    rows = {names.get(id(x), "a parameter of others"): row for x, row in optimizer.state.items()}
    rows |= {f"group {number}": group for number, group in enumerate(optimizer.param_groups)}
    return {
        f"{name}.{key}": value
        for name, row in rows.items()
        for key, value in row.items()
        if is_a(value, Tensor)
    }


def changing(iteration: Iteration) -> dict[str, Tensor]:
    """Return the weights and optimizer states that updates change, those that are there, by name."""
    if iteration.updates is None:
        return {}
    optimizer = iteration.updates.optimizer
    updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    found: dict[str, Tensor] = {}
    for name, parameter in iteration.module.named_parameters():
        if parameter in updated:
            found[name] = parameter
            row = optimizer.state.get(parameter, {})
            found |= {f"{name}.{state}": t for state, t in row.items() if isinstance(t, Tensor)}
    return found


def changed_by(program: Program) -> list[str]:
    """Return the parameters and buffers in whose memory operations of the program write, by name."""
    changed = _written(program)
    named = {**program.parameters, **program.buffers}
    return [name for name, value in named.items() if program.values[value].storage in changed]


def _written(program: Program) -> set[int]:
    """Return the storages in which operations of the program write."""
    return {storage for operation in program.operations for storage in operation.mutates}


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy the tensors to host memory, which has most room."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _changeable(iteration: Iteration, programs: Collection[Program]) -> dict[str, Tensor]:
    """Return the tensors that iterations can change, by name.

    All of the optimizer's states count: an update changes them, or none is there.
    """
    found = residents_of(iteration)
    if not programs:
        return found
    # Only what no program writes can do without a copy.
    same = set[str].intersection(*map(_left_alone, programs))
    return {name: tensor for name, tensor in found.items() if name not in same}


def _left_alone(program: Program) -> set[str]:
    """Return the parameters, buffers and inputs in whose memory no operation writes."""
    changed = _written(program)
    named = {**program.parameters, **program.buffers}
    named |= {f"the input {name}": value for name, value in program.inputs.items()}
    return {name for name, value in named.items() if program.values[value].storage not in changed}


def _of_loss(iteration: Iteration, reached: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors other than the module's to which eager's backward gives a gradient: a loss function's
    parameters.

    reached: the tensors that the iteration's code can reach.
    """
    own = {id(tensor) for tensor in (*iteration.module.parameters(), *tensors_in(iteration.inputs).values())}
    return [tensor for tensor in reached if tensor.requires_grad and id(tensor) not in own]
