"""Comparisons of plans whose updates run on the host, where another processor rounds them in its own way.

The host's own rounding is simulated: its update functions give results that are some units in the last place
off. Where there is a CUDA device, `pytest -m cuda` compares for real.
"""

import random

import pytest
import torch
from memplan.graphs.graph import Kind, Mode
from memplan.graphs.machine import Memory
from memplan.profiling.compare import eager
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.host_updates import stepped_on_host, weights_on_host
from memplan.runtime.codegen.host_calls import CpuOperation
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from memplan.updates.updates import updates_weights
from torch import nn
from transfers import MACHINE, absent, adamw, replace_modes, seeded, unmeasured


@pytest.fixture
def planned():
    """A perceptron whose first two weights are updated on the host, the others on the device."""
    iteration = seeded("perceptron", adamw)
    program = trace(iteration)
    graph = unmeasured(program)
    updates = [i for i, each in enumerate(program.operations) if updates_weights(each)][:2]
    graph = replace_modes(graph, {i: (Mode("host", 1.0, 0, (), on_host=True),) for i in updates})
    runs = [(index, int(index in updates)) for index in range(len(program.operations))]
    kinds, memories = (Kind.PARAMETER,), (Memory.HOST,)
    schedule = absent(graph, runs, random.Random(0), share=0.2, kinds=kinds, memories=memories)
    return iteration, PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))


def off_by(monkeypatch, change):
    """Let every update on the host end with a change of the weight."""
    run = CpuOperation.__call__

    def call(self, host, keep, settings, inputs, results):
        run(self, host, keep, settings, inputs, results)
        for storage in self._mutates[:1]:
            block = dict(zip(self.inputs, inputs, strict=True))[storage]
            change(block.bytes.view(torch.float32))

    monkeypatch.setattr(CpuOperation, "__call__", call)


def test_which_weights_are_updated_on_the_host(planned):
    iteration, step = planned
    names = weights_on_host(step)
    assert len(names) == 2
    assert names < dict(iteration.module.named_parameters()).keys()
    assert compare(iteration, step).equal


def test_one_unit_in_the_last_place_is_rounding(planned, monkeypatch):
    iteration, step = planned
    off_by(monkeypatch, lambda x: x.copy_(torch.nextafter(x, torch.full_like(x, torch.inf))))
    found = compare(iteration, step)
    assert found.equal
    assert {name.partition(".exp")[0] for name, _size in found.rounded} == weights_on_host(step)
    assert "but for the rounding of one update on the host" in str(found)


def test_more_than_rounding_is_refused_by_name(planned, monkeypatch):
    iteration, step = planned
    off_by(monkeypatch, lambda x: x.mul_(1 + 1e-3))
    found = compare(iteration, step)
    assert not found.equal
    names = weights_on_host(step)
    assert any(f"{name}, updated on the host, differs from eager" in str(found) for name in names)


def test_a_wrong_kernel_of_the_device_is_still_found(planned, monkeypatch):
    iteration, step = planned
    off_by(monkeypatch, lambda x: x.copy_(torch.nextafter(x, torch.full_like(x, torch.inf))))
    other = next(
        tensor for name, tensor in iteration.module.named_parameters() if name not in weights_on_host(step)
    )
    own = eager._step

    def wrong(optimizer, way):
        own(optimizer, way)
        other.data.copy_(torch.nextafter(other.data, torch.full_like(other, torch.inf)))

    monkeypatch.setattr(eager, "_step", wrong)
    assert not compare(iteration, step).equal


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"amsgrad": True}], ids=str)
def test_steps_on_copies_leave_all_in_place(options):
    """Nothing moves where the weights are on the CPU; the step is the optimizer's own."""
    weight = nn.Parameter(torch.linspace(-1, 1, 12))
    other = nn.Parameter(weight.detach().clone())
    optimizers = [torch.optim.AdamW([parameter], 0.01, **options) for parameter in (weight, other)]
    for _ in range(3):
        for parameter in (weight, other):
            parameter.grad = torch.full((12,), 0.1)
        with stepped_on_host(optimizers[0], [weight]):
            optimizers[0].step()
        optimizers[1].step()
    assert torch.equal(weight, other)
    assert optimizers[0].param_groups[0]["foreach"] == options.get("foreach")
