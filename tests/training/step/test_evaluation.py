"""Forward alone between training iterations: plain evaluation's bits, within the training's bytes."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.storage.offloaded import Offloaded
from memplan.graphs.machine import Links, Machine
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.profile.profile import measure_program
from memplan.training.plans import front_end
from torch import Tensor, nn
from torch.nn import functional

LINKS = Machine(links=Links(1e9, 1e9))


class Model(nn.Module):
    """Dropout, batch norm, wide layers: the weights are most of what there is. `layers.1.2` stays in eval."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Linear(6, 32), nn.BatchNorm1d(32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Dropout(0.2), nn.Linear(96, 32)) for _ in range(3)
        )
        self.layers[1].get_submodule("2").eval()
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.norm(self.first(x))
        for layer in self.layers:
            x = x + layer(x)
        return {"hidden": x, "logits": self.head(x)}


def loss_of(output: dict[str, Tensor], labels: Tensor) -> Tensor:
    return functional.cross_entropy(output["logits"], labels)


def batches(*lengths: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def planned(module: nn.Module, **options: Any) -> Any:
    ((x, labels),) = batches(24)
    given: dict[str, Any] = {"targets": labels, "loss_fn": loss_of, "budget": "100%", "solver": "rotor"}
    return memplan.optimize(module, x, **(given | options))


def plainly(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    with torch.no_grad():
        output = module(x)
    for part, mode in modes:
        part.training = mode
    return output


@pytest.mark.scripts
@pytest.mark.parametrize(("updates", "moved"), [(True, True), (False, False)], ids=["moved", "gradients"])
def test_evaluation_between_training_iterations(updates: bool, moved: bool) -> None:
    module = Model()
    baseline, optimizer = copy.deepcopy(module), adamw(module)
    theirs, given = adamw(baseline), batches(24, 10, 24)
    step = planned(
        module,
        return_outputs="logits",
        budget="70%" if moved else "100%",
        optimizer=optimizer if updates else None,
        machine=LINKS if moved else None,
        solver="offload-greedy" if moved else "rotor",
        time_limit=0.5,
    )
    if moved:
        given = [given[0], given[2]]
    torch.manual_seed(11)
    losses = [step(x, targets=labels) for x, labels in given[:1]]
    seen: list[Any] = []
    for (x, _labels), (y, more) in itertools.pairwise(given):
        if not updates:
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        seen.append(step.evaluate(y, targets=more))
        assert seen[-1].output["hidden"] is None
        with torch.inference_mode():
            seen.append(step.predict(x))
        losses.append(step(y, targets=more))
    torch.manual_seed(11)
    expected: list[Tensor] = []
    checked = iter(seen)
    for number, (x, labels) in enumerate(given):
        loss = loss_of(baseline(x), labels)
        loss.backward()
        expected.append(loss.detach())
        if number + 1 < len(given):
            theirs.step()
            theirs.zero_grad()
            y, more = given[number + 1]
            evaluation, output = next(checked), plainly(baseline, y)
            assert torch.equal(evaluation.loss, loss_of(output, more))
            assert torch.equal(evaluation.output["logits"], output["logits"])
            assert torch.equal(next(checked)["logits"], plainly(baseline, x)["logits"])
    assert all(torch.equal(own, other) for own, other in zip(losses, expected, strict=True))
    for (name, own), other in zip(module.named_buffers(), baseline.buffers(), strict=True):
        assert torch.equal(own, other), name
    assert not any(parameter.is_inference() for parameter in module.parameters())
    if not updates:
        return
    theirs.step()
    for (name, own), other in zip(module.named_parameters(), baseline.parameters(), strict=True):
        assert torch.equal(own, other), name


@pytest.mark.scripts
def test_the_module_is_afterwards_in_its_modes_and_random_numbers_go_on() -> None:
    module, ((x, labels),) = Model(), batches(24)
    modes = [part.training for part in module.modules()]
    step = planned(module)
    before = torch.get_rng_state()
    assert step.evaluate(x, targets=labels).output is None
    assert torch.equal(torch.get_rng_state(), before)
    assert [part.training for part in module.modules()] == modes
    with pytest.raises(memplan.MemplanError):
        step.evaluate(x.double(), targets=labels)
    assert [part.training for part in module.modules()] == modes
    assert step.predict(x).keys() == {"hidden", "logits"}


@pytest.mark.scripts
def test_a_budget_below_the_weights_evaluates_layer_by_layer() -> None:
    """Beside the optimizer's states that stay on the device, if any; never more, taking weights over too."""
    module, ((x, labels),) = Model(), batches(24)
    weights = sum(parameter.nbytes for parameter in module.parameters())
    optimizer = adamw(module)
    step = planned(
        module, budget=int(0.8 * weights), optimizer=optimizer, machine=LINKS, solver="joint", time_limit=1.0
    )
    step(x, targets=labels)
    here = step.evaluate(x, targets=labels)
    plan = step._executor.forward["evaluate"].plans.steps[0]
    graph, _budget, machine, *_ = plan._terms
    figures = simulate(graph, plan.cycle.schedule, budget=plan.budget, machine=machine).figures
    assert figures.peak <= plan.budget <= int(0.8 * weights)
    offloaded = sum(parameter.nbytes for parameter in module.parameters() if isinstance(parameter, Offloaded))
    assert offloaded >= weights - plan.budget
    step.restore_to_device()
    assert torch.equal(here.loss, loss_of(plainly(module, x), labels))


@pytest.mark.scripts
def test_batches_of_any_shape_are_planned_once_and_kept_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(
        front_end,
        "measure_program",
        lambda *given, **more: done.append("measured") or measure_program(*given, **more),
    )
    (x, labels), (y, more), (z, most) = batches(24, 10, 5)
    for _start in range(2):
        step = planned(Model(), cache=tmp_path, max_plans=2)
        for _ in range(2):
            step.evaluate(x, targets=labels)
            step.evaluate(y, targets=more)
        step.evaluate(z, targets=most)
        assert len(step._executor.forward["evaluate"].plans.steps) == 2
        assert len(step.plans) == 1
    assert len(done) == 1  # the other shapes' plans are derived from the first's


def test_optimizer_states_on_the_device_are_not_evaluations_to_use() -> None:
    module, ((x, labels),) = Model(), batches(24)
    step = planned(module, optimizer=adamw(module))
    step.evaluate(x, targets=labels)
    states = 2 * sum(parameter.nbytes for parameter in module.parameters())
    assert step._executor.forward["evaluate"].plans.steps[0].budget == step.plans[0].budget - states


@pytest.mark.scripts
def test_generation_takes_weights_back_and_training_goes_on() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    module = transformers.GPT2LMHeadModel(config)
    baseline, tokens = copy.deepcopy(module), torch.randint(1, 50, (2, 16))
    batch, optimizer, theirs = {"input_ids": tokens, "labels": tokens}, adamw(module), adamw(baseline)
    step = memplan.optimize(
        module, batch, budget="70%", optimizer=optimizer, machine=LINKS, solver="offload-greedy"
    )
    torch.manual_seed(11)
    own: list[Tensor] = []
    for _ in range(2):
        step(**batch)
        step.restore_to_device()
        module.eval()
        own.append(module.generate(tokens[:, :4], max_new_tokens=4, do_sample=False, pad_token_id=0))
        module.train()
    torch.manual_seed(11)
    for generated in own:
        baseline(**batch).loss.backward()
        theirs.step()
        theirs.zero_grad()
        baseline.eval()
        expected = baseline.generate(tokens[:, :4], max_new_tokens=4, do_sample=False, pad_token_id=0)
        baseline.train()
        assert torch.equal(generated, expected)
