"""Weights and states that a step has moved are the true ones for whoever asks, and training goes on.

The oracle: the same training in eager PyTorch.
"""

import copy
import gc
import io
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from away import moving
from memplan.devices.storage.offloaded import Offloaded, give_up, hold_of, offload_value, restore
from memplan.graphs.errors import InputError, MemplanError, MismatchError
from memplan.graphs.machine import Memory
from memplan.guards.python_state import PythonState
from memplan.planner.baseline import baseline_schedule
from memplan.profiling.compare.eager import run_eager
from memplan.profiling.compare.peaks import peaks
from memplan.program.program import Value
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.torch_support.torch_tensors import attributes_of
from memplan.tracing.trace import trace
from memplan.training.step.step import Step
from not_none import not_none
from torch import nn
from torch.utils import dlpack
from transfers import MACHINE, adamw, assert_equal, everything, seeded, train_eagerly, unmeasured

HOST, DISK = Memory.HOST, Memory.DISK


def trained(iteration, steps, turns=4):
    """As train_eagerly, by several steps in turn."""
    outcomes = []
    for turn in range(turns):
        torch.manual_seed(turn)
        outcomes.append(steps[turn % len(steps)].run(iteration.inputs))
    return outcomes, everything(iteration)


def form_of(tensor):
    return Value(0, tuple(tensor.shape), tensor.stride(), 0, tensor.dtype, tensor.device)


def offloaded(iteration):
    there = [*iteration.module.parameters(), *iteration.module.buffers()]
    if iteration.updates is not None:
        there += [t for row in iteration.updates.optimizer.state.values() for t in row.values()]
    return sum(isinstance(tensor, Offloaded) for tensor in there)


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def averaged(iteration):
    average = torch.optim.swa_utils.AveragedModel(iteration.module)
    average.update_parameters(iteration.module)
    average.update_parameters(iteration.module)
    return average.module.state_dict()


def run_plainly(iteration):
    torch.manual_seed(9)
    with torch.no_grad():
        return {"loss": iteration.loss_fn(iteration.module(*iteration.inputs))}


def by_index(state_dict):
    return {f"{i}.{name}": tensor for i, row in state_dict["state"].items() for name, tensor in row.items()}


READS = {
    "state_dict": lambda it: it.module.state_dict(),
    "save": lambda it: saved(it.module.state_dict()),
    "save the module": lambda it: saved(it.module).state_dict(),
    "pickle": lambda it: pickle.loads(pickle.dumps(it.module)).state_dict(),
    "deepcopy": lambda it: copy.deepcopy(it.module).state_dict(),
    "deepcopy one": lambda it: {"w": copy.deepcopy(next(it.module.parameters()))},
    "data": lambda it: {name: p.data.clone() for name, p in it.module.named_parameters()},
    "numpy": lambda it: {n: torch.from_numpy(p.detach().numpy()) for n, p in it.module.named_parameters()},
    "vector": lambda it: {"all": nn.utils.parameters_to_vector(it.module.parameters())},
    "norm": lambda it: {"norm": torch._foreach_norm(list(it.module.parameters()))[0]},  # pyright: ignore[reportPrivateImportUsage]
    "print": lambda it: {str(next(it.module.parameters())): torch.zeros(1)},
    "average": averaged,
    "forward": run_plainly,
    "optimizer": lambda it: by_index(saved(it.updates.optimizer.state_dict())),
    "deepcopy of the optimizer": lambda it: by_index(copy.deepcopy(it.updates.optimizer).state_dict()),
    "type": lambda it: it.module.to(torch.float64).to(torch.float32).state_dict(),
}


def test_no_address_of_what_is_away_is_given_to_others():
    """PyTorch does not tell of `to_dlpack`, which would export an empty tensor."""
    weight = torch.randn(4, 8)
    true = weight.clone()
    offload_value(weight, form_of(weight), lambda: restore(weight, true), lambda: [true])
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        dlpack.to_dlpack(weight)  # pyright: ignore[reportPrivateImportUsage]
    assert isinstance(weight, Offloaded)
    assert torch.equal(torch.from_dlpack(weight), true)
    assert type(weight) is torch.Tensor


def test_what_undo_keeps_counts_on_the_host():
    iteration = seeded("perceptron", adamw)
    program = trace(iteration)
    schedule = baseline_schedule(unmeasured(program))
    taken = list[int]()
    for undo in (False, True):
        step = PlannedStep(iteration, program, schedule, undo=undo)
        step.run(iteration.inputs)  # makes the optimizer's states
        taken.append(peaks(step, iteration.inputs).host)
    weights = sum(p.nbytes for p in iteration.module.parameters())
    assert taken[0] == 0
    assert 3 * weights <= taken[1] < 3.2 * weights
    step = moving(iteration)
    cycle = not_none(step.cycle)
    terms = Terms(cycle.graph, None, replace(MACHINE, host_capacity=cycle.host.needed + weights))
    PlannedStep(iteration, step.program, cycle.schedule, terms)
    with pytest.raises(
        InputError,
        match=r"rollback_on_error=True keeps .* bytes in host memory in addition to the .* of the schedule",
    ):
        PlannedStep(iteration, step.program, cycle.schedule, terms, undo=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("read", READS)
def test_who_reads_what_is_away_gets_the_true_values(read):
    eager = seeded("perceptron", adamw)
    train_eagerly(eager, 2)
    expected = {name: tensor.detach().clone() for name, tensor in READS[read](eager).items()}
    iteration = seeded("perceptron", adamw)
    step = moving(iteration)
    for turn in range(2):
        torch.manual_seed(turn)
        step.run(iteration.inputs)
    assert offloaded(iteration) > 3
    found = READS[read](iteration)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert type(tensor) in (torch.Tensor, nn.Parameter)
        assert torch.equal(tensor, expected[name]), name
    torch.manual_seed(2)
    loss = step.run(iteration.inputs).loss
    torch.manual_seed(2)
    assert torch.equal(not_none(loss), not_none(eager.loss_fn)(eager.module(*eager.inputs)))


def test_form_and_gradients_are_asked_for_without_bringing_anything_back():
    iteration = seeded("perceptron", adamw)
    forms = [(p.shape, p.stride(), p.numel(), p.nbytes, p.device) for p in iteration.module.parameters()]
    step = moving(iteration)
    step.run(iteration.inputs)
    before = offloaded(iteration)
    iteration.module.zero_grad()
    not_none(iteration.updates).optimizer.zero_grad()
    assert [p.grad for p in iteration.module.parameters() if p.requires_grad] == [None] * len(forms)
    assert [
        (p.shape, p.stride(), p.numel(), p.nbytes, p.device) for p in iteration.module.parameters()
    ] == forms
    assert before == offloaded(iteration) > 3


def test_one_that_is_read_comes_back_alone():
    iteration = seeded("perceptron", adamw)
    step = moving(iteration)
    step.run(iteration.inputs)
    before = offloaded(iteration)
    next(p for p in iteration.module.parameters() if isinstance(p, Offloaded)).sum()
    assert offloaded(iteration) == before - 1


def test_two_steps_that_move_the_same_weights_train_as_one():
    """Each takes from the other what it needs; a step that moves nothing does so too."""
    eager = train_eagerly(seeded("perceptron", adamw), 6)
    iteration = seeded("perceptron", adamw)
    program = trace(iteration)
    baseline = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    steps = [moving(iteration), moving(iteration, 20), baseline]
    assert_equal(trained(iteration, steps, 6), eager)


@pytest.mark.parametrize("assign", [False, True])
def test_what_is_loaded_is_trained_on(assign):
    """Values copied into the weights, and other tensors in their places; and into the optimizer."""
    eager = seeded("perceptron", adamw)
    train_eagerly(eager, 2)
    weights = copy.deepcopy(eager.module.state_dict())
    states = copy.deepcopy(not_none(eager.updates).optimizer.state_dict())
    expected = train_eagerly(eager, 3)
    iteration = seeded("perceptron", adamw)
    step = moving(iteration)
    for turn in range(3):
        torch.manual_seed(turn)
        step.run(iteration.inputs)
    if assign:
        for name, parameter in list(iteration.module.named_parameters()):
            parameter.data = weights[name].clone()
    else:
        iteration.module.load_state_dict(weights)
    not_none(iteration.updates).optimizer.load_state_dict(states)
    assert_equal(trained(iteration, [step], 3), expected)


def test_a_step_that_is_gone_leaves_the_true_values():
    eager = train_eagerly(seeded("perceptron", adamw), 2)
    iteration = seeded("perceptron", adamw)
    step = moving(iteration)
    outcomes, _ = trained(iteration, [step], 1)
    torch.manual_seed(1)
    outcomes.append(step.run(iteration.inputs))
    del step
    assert_equal((outcomes, everything(iteration)), eager)


def test_no_memory_to_bring_one_back(monkeypatch):
    """Refused in one line, and nothing is lost."""
    iteration = seeded("perceptron")
    step = moving(iteration, memories=(HOST,))
    expected = {name: tensor.clone() for name, tensor in iteration.module.state_dict().items()}
    step.place()
    fetched = not_none(step.cycle)._fetched

    def full(_copy):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(step.cycle, "_fetched", full)
    with pytest.raises(MemplanError, match=r"no memory on the device to bring .* back") as raised:
        iteration.module.state_dict()
    named = re.findall(r"\bstep\.(\w+)\(", str(raised.value))
    assert named == ["save", "state_on_cpu"]
    assert all(hasattr(Step, name) for name in named)
    monkeypatch.setattr(step.cycle, "_fetched", fetched)
    for name, tensor in iteration.module.state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_weights_of_another_form_are_refused():
    iteration = seeded("perceptron")
    step = moving(iteration)
    step.run(iteration.inputs)
    iteration.module.double()
    with pytest.raises(MismatchError, match=r"is torch.float64 .*; the plan is for torch.float32"):
        step.run(iteration.inputs)
    iteration.module.float()
    assert torch.isfinite(not_none(step.run(iteration.inputs).loss))


def values_of(weight):
    return torch.linspace(-1, 1, weight.numel()).reshape(weight.shape)


def load_by_swapping(module, _weight):
    values = {name: values_of(tensor) for name, tensor in copy.deepcopy(module).state_dict().items()}
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.load_state_dict(values)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


WRITES = {
    "set_": lambda _module, weight: weight.set_(values_of(weight)),
    "set_ of a storage": lambda _module, weight: weight.set_(
        values_of(weight).untyped_storage(), 0, weight.shape, weight.stride()
    ),
    "data": lambda _module, weight: setattr(weight, "data", values_of(weight)),
    "copy_": lambda _module, weight: weight.copy_(values_of(weight)),
    "fill": lambda _module, weight: nn.init.constant_(weight, 0.1),
    "an element": lambda _module, weight: weight.__setitem__((0, 0), 3.0),
    "a row of data": lambda _module, weight: weight.data[0].zero_(),
    "a list": lambda module, _weight: torch._foreach_mul_(list(module.parameters()), 2.0),  # pyright: ignore[reportPrivateImportUsage]
    "one vector": lambda module, _weight: nn.utils.vector_to_parameters(
        torch.linspace(-1, 1, sum(p.numel() for p in module.parameters())), module.parameters()
    ),
    "an alias": lambda _module, weight: weight.as_subclass(torch.Tensor).mul_(2.0),
    "NumPy": lambda _module, weight: weight.detach().numpy().__imul__(2.0),
    "swap_tensors": lambda _module, weight: torch.utils.swap_tensors(weight, nn.Parameter(values_of(weight))),
    "load by swapping": load_by_swapping,
    "attributes": lambda _module, weight: vars(weight).update(mine=1),
    "load": lambda module, _weight: module.load_state_dict(
        {name: values_of(tensor) for name, tensor in copy.deepcopy(module).state_dict().items()}
    ),
}


def first_weight(iteration) -> Any:
    return iteration.module[0].weight


def written(module, write):
    weight = module[0].weight
    with torch.no_grad():
        WRITES[write](module, weight)


@pytest.mark.scripts
def test_what_is_written_into_an_offloaded_weight_is_trained_on():
    """By every way of PyTorch to change a weight; what was read before it holds no part of memplan."""
    eager, iteration = seeded("perceptron", adamw), seeded("perceptron", adamw)
    step = moving(iteration)
    gc.collect()  # fake tensors of the trace, which refer to the weights: `swap_tensors` refuses these
    for turn, write in enumerate(WRITES):
        torch.manual_seed(turn)
        step.run(iteration.inputs)
        torch.manual_seed(turn)
        run_eager(eager)
        assert offloaded(iteration) > 3
        for each in (eager, iteration):
            written(each.module, write)
        assert "_memplan" not in vars(first_weight(iteration)), write
        torch.manual_seed(turn)
        found = step.run(iteration.inputs)
        torch.manual_seed(turn)
        assert torch.equal(not_none(found.loss), not_none(run_eager(eager).loss)), write
    assert_equal(([], everything(iteration)), ([], everything(eager)))


def test_an_offloaded_weight_is_made_a_parameter_of_its_own():
    """As is done to untie weights. The new one shares memory with the old one, as `nn.Parameter` has it."""
    iteration = seeded("perceptron", adamw)
    step = moving(iteration)
    step.run(iteration.inputs)
    weight = first_weight(iteration)
    assert hold_of(weight) is not None
    made = nn.Parameter(weight, requires_grad=False)
    assert type(made) is nn.Parameter
    assert not made.requires_grad
    assert torch.equal(made, weight)
    assert made.data_ptr() == weight.data_ptr()
    assert type(weight.detach()) is torch.Tensor


def test_what_is_lost_stays_so_until_all_of_it_is_replaced():
    """A copy that fails leaves no memory that nobody has written."""

    def refuse():
        raise MemplanError("lost")

    def lost() -> Any:
        weight = nn.Parameter(torch.randn(4, 8))
        give_up(weight, form_of(weight), refuse)
        return weight

    for write in ("set_", "data", "copy_", "swap_tensors"):
        weight = lost()
        with torch.no_grad():
            if write == "swap_tensors":
                with pytest.raises(MemplanError, match="lost"):
                    WRITES[write](None, weight)
                continue
            WRITES[write](None, weight)
        assert type(weight) is nn.Parameter
        assert torch.equal(weight, torch.linspace(-1, 1, 32).reshape(4, 8))
    weight = lost()
    for attempt in (
        lambda: weight.copy_(torch.zeros(3)),
        lambda: weight.set_(torch.zeros(4, 8, dtype=torch.int64)),
        lambda: setattr(weight, "data", torch.zeros(4, 8, dtype=torch.int64)),
    ):
        with torch.no_grad(), pytest.raises((RuntimeError, TypeError)):
            attempt()
        with pytest.raises(MemplanError, match="lost"):
            weight.sum()


def test_python_state_that_is_put_back_leaves_who_holds_what():
    """Whether the tensor was offloaded when it was noted, or is so now."""
    iteration = seeded("perceptron", adamw)
    step = moving(iteration)
    weight = first_weight(iteration)
    here = PythonState(iteration, tensors=False)
    step.run(iteration.inputs)
    attributes_of(weight)["mine"] = 1
    here.put_back()
    assert "mine" not in attributes_of(weight)
    away = PythonState(iteration, tensors=False)
    assert hold_of(weight) is not None
    expected = weight.detach().clone()
    away.put_back()
    assert vars(weight) == {}
    assert torch.equal(weight, expected)
