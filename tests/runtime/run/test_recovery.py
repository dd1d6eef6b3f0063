"""An iteration that fails anywhere leaves weights and states as before it, or refuses them; training goes on.

The oracle: eager training without any failure.
"""

import copy
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from away import with_updates_on_cpu
from memplan.graphs.errors import MemplanError
from memplan.planner.baseline import baseline_schedule
from memplan.profiling.compare.eager import run_eager
from memplan.runtime.run import queues
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from not_none import not_none
from transfers import MACHINE, absent, adamw, clipped, everything, in_order, seeded, unmeasured


class Fault:
    """Raises when the n-th of the calls comes that it is told of."""

    def __init__(self):
        self.left: int | None = None
        self.calls = 0
        self.count: Callable[[], object] = self.count_down

    def count_down(self):
        self.calls += 1
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise torch.OutOfMemoryError("out of memory, on purpose")

    def around(self, target):
        def run(*arguments, **keywords):
            self.count()
            return target(*arguments, **keywords)

        return run


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, 0.9, foreach=False)


def faulty(iteration, kind, *, undo=False, when="calls"):
    """A step of one kind, and the fault in its calls or in its jobs."""
    fault = Fault()
    program = trace(iteration)
    graph = unmeasured(program)
    runs = in_order(graph)
    if when == "calls":
        operations = [
            operation._replace(call=replace(operation.call, target=fault.around(operation.call.target)))
            for operation in program.operations
        ]
        program = replace(program, operations=operations)
    if kind == "plain":
        return PlannedStep(iteration, program, baseline_schedule(graph), undo=undo), fault
    if kind == "cpu":
        graph, runs = with_updates_on_cpu(graph, program)
    for number in range(50):
        schedule = absent(graph, runs, random.Random(number), share=0.9)
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE), undo=undo)
        if step.cycle is not None and len(step.cycle.moved) > 3:
            return step, fault
    raise AssertionError("no schedule moves enough")


def same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def eagerly(optimizer, turns, name="perceptron"):
    """The state after each number of turns, and the iteration."""
    iteration = seeded(name, optimizer)
    states = [everything(iteration)]
    for turn in range(turns):
        torch.manual_seed(turn)
        run_eager(iteration)
        states.append(everything(iteration))
    return states, iteration


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["plain", "device", "cpu"])
@pytest.mark.parametrize("optimizer", [clipped, momentum])
def test_with_undo_a_failure_anywhere_leaves_what_was_before(kind, optimizer):
    """Also the first iteration, which makes the states, and the random numbers that were drawn."""
    states, _ = eagerly(optimizer, 5)
    iteration = seeded("perceptron", optimizer)
    step, fault = faulty(iteration, kind, undo=True)
    rng = random.Random(0)
    calls = len(step.program.operations)
    for turn in range(5):
        for place in sorted(rng.sample(range(1, calls + 1), 4)):
            torch.manual_seed(turn)
            fault.left = place
            with pytest.raises(torch.OutOfMemoryError, match="on purpose"):
                step.run(iteration.inputs)
            same(everything(iteration), states[turn])
            fault.left = place
            with pytest.raises(torch.OutOfMemoryError, match="on purpose"):
                step.run(iteration.inputs)
        fault.left = None
        step.run(iteration.inputs)
        assert torch.equal(torch.get_rng_state(), generator_after(turn, step))
    same(everything(iteration), states[5])


def generator_after(turn, step):
    """Nothing was drawn by those that failed."""
    torch.manual_seed(turn)
    state = torch.get_rng_state()
    if step.program.operations[0].random or any(operation.random for operation in step.program.operations):
        run_eager(seeded_again(turn))
        state = torch.get_rng_state()
    return state


def seeded_again(turn):
    iteration = seeded("perceptron")
    torch.manual_seed(turn)
    return iteration


@pytest.mark.parametrize("kind", ["plain", "device", "cpu"])
def test_without_undo_it_is_as_before_or_refused(kind):
    states, other = eagerly(adamw, 2)
    weights, optimizer = (
        copy.deepcopy(each.state_dict()) for each in (other.module, not_none(other.updates).optimizer)
    )
    torch.manual_seed(2)
    run_eager(other)
    after = everything(other)
    iteration = seeded("perceptron", adamw)
    step, fault = faulty(iteration, kind)
    for turn in range(2):
        torch.manual_seed(turn)
        step.run(iteration.inputs)
    refused = 0
    calls = len(step.program.operations)
    for place in range(1, calls + 1, 3):
        fault.left = place
        try:
            step.run(iteration.inputs)
            assert kind == "cpu"  # an update on the CPU may fail later
            not_none(step.cycle).queues.drain()
        except torch.OutOfMemoryError:
            pass
        fault.left = None
        try:
            everything(iteration)
        except MemplanError:
            refused += 1
            with pytest.raises(MemplanError, match="failed between its updates: load the weights"):
                step.run(iteration.inputs)
            iteration.module.load_state_dict(weights)
            not_none(iteration.updates).optimizer.load_state_dict(copy.deepcopy(optimizer))
        same(everything(iteration), states[2])
    assert 0 < refused < calls // 3
    torch.manual_seed(2)
    step.run(iteration.inputs)
    same(everything(iteration), after)


@pytest.mark.parametrize("kind", ["device", "cpu"])
def test_a_copy_that_fails_loses_nothing(kind, monkeypatch):
    """Any job, also of the iteration before: what it was to copy from is still there."""
    states, _ = eagerly(adamw, 6)
    iteration = seeded("perceptron", adamw)
    step, _ = faulty(iteration, kind, undo=True, when="jobs")
    fault = Fault()
    punctual = queues.Job.run

    def run(job):
        job.work = fault.around(job.work)
        punctual(job)

    monkeypatch.setattr(queues.Job, "run", run)
    torch.manual_seed(0)
    step.run(iteration.inputs)
    jobs = fault.calls
    assert jobs > 5
    rng = random.Random(0)
    for turn in range(1, 6):
        for place in sorted(rng.sample(range(1, jobs), 3)):
            torch.manual_seed(turn)
            fault.left = place
            with pytest.raises(torch.OutOfMemoryError, match="on purpose"):
                step.run(iteration.inputs)
            fault.left = None
            if place % 2:
                same(everything(iteration), states[turn])
        torch.manual_seed(turn)
        step.run(iteration.inputs)
    same(everything(iteration), states[6])


def test_statistics_of_batch_norm_are_put_back_always():
    iteration = seeded("in_place")
    step, fault = faulty(iteration, "plain")
    step.run(iteration.inputs)
    before = everything(iteration)
    fault.calls = 0
    step.run(iteration.inputs)
    iteration.module.load_state_dict(before)
    for place in range(1, fault.calls + 1):
        fault.left = place
        with pytest.raises(torch.OutOfMemoryError, match="on purpose"):
            step.run(iteration.inputs)
        same(everything(iteration), before)


def test_ctrl_c_waits_for_the_end_of_the_iteration():
    """Weights, states and counts are those after it, whenever it comes."""
    states, _ = eagerly(adamw, 3)
    iteration = seeded("perceptron", adamw)
    step, fault = faulty(iteration, "device")

    def interrupt():
        fault.calls += 1
        if fault.calls == fault.left:
            os.kill(os.getpid(), signal.SIGINT)

    fault.count = interrupt
    handler = signal.getsignal(signal.SIGINT)
    for turn, place in enumerate((1, 7, len(step.program.operations))):
        fault.calls, fault.left = 0, place
        torch.manual_seed(turn)
        with pytest.raises(KeyboardInterrupt):
            step(*iteration.inputs)
        assert signal.getsignal(signal.SIGINT) is handler
        same(everything(iteration), states[turn + 1])


def test_gradients_are_there_when_ctrl_c_takes_effect():
    iteration = seeded("perceptron")
    step, fault = faulty(iteration, "plain")
    came = []
    fault.count = lambda: came or came.append(os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        step(*iteration.inputs)
    assert all(parameter.grad is not None for parameter in iteration.module.parameters())
