"""What a plan takes for granted of a module: it is right, or refused in one line, never ignored.

The oracle: plain PyTorch.
"""

import random
from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError, MemplanError, MismatchError
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.profiling.compare.comparison import compare
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from recomputing import recomputing
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import destroy_process_group, init_process_group
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations, prune
from transfers import unmeasured


def loss_fn(output):
    return output.square().mean()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4))


def planned(module):
    iteration = Iteration(module, (torch.ones(3, 8),), loss_fn)
    program = trace(iteration)
    return iteration, PlannedStep(iteration, program, recomputing(unmeasured(program), random.Random(0)))


def changed(change):
    module = network()
    change(module)
    return module


RIGHT = {
    "weight norm": lambda m: parametrizations.weight_norm(m[0]),
    "spectral norm": lambda m: parametrizations.spectral_norm(m[0]),
    "orthogonal": lambda m: parametrizations.orthogonal(m[0]),
    "old weight norm": lambda m: nn.utils.weight_norm(m[0]),
    "pruned": lambda m: prune.l1_unstructured(m[0], "weight", 0.5),
    "forward hook": lambda m: m[0].register_forward_hook(lambda _module, _inputs, output: 2 * output),
    "pre-hook": lambda m: m[0].register_forward_pre_hook(lambda _module, inputs: (2 * inputs[0],)),
    "backward hook": lambda m: m[3].register_full_backward_hook(lambda _m, given, _o: (2 * given[0],)),
    "backward pre-hook": lambda m: m[3].register_full_backward_pre_hook(lambda _m, given: (2 * given[0],)),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_there_when_the_module_is_planned_is_in_the_plan(name):
    iteration, step = planned(changed(RIGHT[name]))
    comparison = compare(iteration, step)
    assert comparison.equal, comparison


@pytest.mark.parametrize("how", ["whole", "part", "in place"])
def test_compiled_modules_are_planned_as_what_they_were_compiled_from(how):
    module: Any = network()
    if how == "whole":
        module = torch.compile(module)
    elif how == "part":
        module[0] = torch.compile(module[0])
    else:
        module.compile()
    iteration, step = planned(module)
    comparison = compare(iteration, step)
    assert comparison.equal, comparison
    assert comparison.compared > 4


def test_autocast_around_all_is_in_the_plan():
    module = network()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        iteration, step = planned(module)
        assert compare(iteration, step).equal
        mixed = step(*iteration.inputs)
    torch.manual_seed(3)
    assert not torch.equal(mixed, planned(module)[1](*iteration.inputs))
    with pytest.raises(MismatchError, match=r"called without autocast; .* under autocast to torch.bfloat16"):
        step(*iteration.inputs)


def test_autocast_around_a_step_alone_is_refused():
    iteration, step = planned(network())
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(
            MismatchError, match=r"called under autocast to torch.bfloat16; the plan was made without"
        ),
    ):
        step(*iteration.inputs)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner: Any = torch.jit.trace(nn.Linear(8, 4), torch.ones(1, 8))

    def forward(self, x):
        return self.inner(x)


def in_parallel(wrap):
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        return wrap(network())
    finally:
        destroy_process_group()


def sharded(module):
    return fully_shard(module, mesh=init_device_mesh("cpu", (1,)))


REFUSED = {
    "DDP": (
        lambda: in_parallel(nn.parallel.DistributedDataParallel),
        "the module is a DistributedDataParallel, whose communication can't be planned",
    ),
    "FSDP2": (lambda: in_parallel(sharded), "whose communication can't be planned"),
    "script": (Scripted, "inner is a TopLevelTracedModule of torch.jit, which can't be traced"),
    "gradient hook": (
        lambda: changed(lambda m: m[0].weight.register_hook(lambda gradient: 2 * gradient)),
        "0.weight has a hook on its gradient",
    ),
    "accumulation hook": (
        lambda: changed(lambda m: m[0].weight.register_post_accumulate_grad_hook(lambda _p: None)),
        "0.weight has a hook on its gradient",
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_plan_can_hold_is_refused(name):
    make, line = REFUSED[name]
    with pytest.raises(InputError, match=line) as refused:
        planned(make())
    assert "\n" not in str(refused.value)


LATER = {
    "frozen": (
        lambda m: m[0].requires_grad_(False),
        r"0.weight.requires_grad is False; the plan is for True",
    ),
    "eval": (lambda m: m.eval(), "training is False; the plan is for True"),
    "eval of a part": (lambda m: m[2].eval(), "2.training is False"),
    "another dropout": (lambda m: setattr(m[2], "p", 0.5), "2.p is 0.5; the plan is for 0.2"),
    "a new attribute": (lambda m: setattr(m, "scale", 2.0), "scale is 2.0; the plan is for 'not there'"),
    "a layer replaced": (lambda m: m.__setitem__(0, nn.Linear(8, 16)), "its submodules changed"),
    "a layer more": (lambda m: m.append(nn.ReLU()), "its submodules changed"),
    "pruned": (RIGHT["pruned"], "its (hooks|tensors) changed"),
    "parametrized": (RIGHT["weight norm"], "its (class|parts|tensors) changed"),
    "forward hook": (RIGHT["forward hook"], "0: its hooks changed"),
    "backward hook": (RIGHT["backward hook"], "3: its hooks changed"),
    "forward": (lambda m: setattr(m[0], "forward", m[3].forward), "0: its forward changed"),
    "gradient hook": (lambda m: m[0].weight.register_hook(lambda g: 2 * g), "0.weight has a hook"),
    "type": (lambda m: m.double(), r"0.weight is torch.float64 \[16, 8\].*; the plan is for torch.float32"),
    "shape": (lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(3, 8))), r"0.weight is .*\[3, 8\]"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", LATER)
def test_what_changes_later_is_noticed(name):
    iteration, step = planned(network())
    step(*iteration.inputs)
    change, line = LATER[name]
    change(iteration.module)
    with pytest.raises(MemplanError, match=line) as refused:
        step(*iteration.inputs)
    assert "\n" not in str(refused.value)


def test_a_loss_that_is_a_module_is_looked_at_too():
    loss = nn.CrossEntropyLoss()
    module = nn.Linear(8, 4)
    iteration = Iteration(module, (torch.ones(3, 8),), lambda_of(loss))
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    step(*iteration.inputs)
    loss.label_smoothing = 0.1
    with pytest.raises(MismatchError, match=r"label_smoothing is 0.1; the plan is for 0.0"):
        step(*iteration.inputs)


def lambda_of(loss):
    """A loss function that is a module."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = loss

        def forward(self, output):
            return self.loss(output, output.argmax(1))

    return First()


def test_comparing_with_a_module_that_counts_leaves_its_count():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    iteration, step = planned(Counting(8, 4))
    assert compare(iteration, step).equal
    assert "calls" not in vars(iteration.module)
    assert compare(iteration, step).equal


def asked_for_gradients(module: nn.Module, factor: float = 1.0) -> Any:
    """Register a new function at each call, as transformers' gradient_checkpointing_enable does."""

    def require(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.requires_grad_(True)

    def scale(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * factor

    return module.register_forward_hook(require if factor == 1.0 else scale)


def test_hooks_of_the_same_code_may_be_registered_anew_between_iterations():
    module = network()
    one, scaled = asked_for_gradients(module[0]), asked_for_gradients(module[1], 2.0)
    iteration, step = planned(module)
    for handle in (one, scaled):
        handle.remove()
    asked_for_gradients(module[0])
    scaled = asked_for_gradients(module[1], 2.0)
    asked_for_gradients(module[0])  # a second one changes nothing
    assert compare(iteration, step).equal
    scaled.remove()
    scaled = asked_for_gradients(module[1], 3.0)
    with pytest.raises(MismatchError, match="1: its hooks changed"):
        step.run(iteration.inputs)
    scaled.remove()
    for _twice in range(2):
        asked_for_gradients(module[1], 2.0)
    with pytest.raises(MismatchError, match="1: its hooks changed"):
        step.run(iteration.inputs)
