"""float16 with GradScaler: bit by bit a loop of PyTorch, through overflow, growth and clipping."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

HALF = torch.float16
Batches = list[tuple[Tensor, Tensor]]


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16))
    return nn.Sequential(nn.Linear(6, 16), wide, nn.LayerNorm(16), nn.Linear(16, 3))


def batches(count: int = 12) -> Batches:
    """Of two shapes."""
    torch.manual_seed(7)
    rows = [20 if number % 5 == 2 else 48 for number in range(count)]
    return [(torch.randn(n, 6), torch.randint(3, (n,))) for n in rows]


def scaler(first: float = 2.0**20, **options: Any) -> torch.amp.GradScaler:
    """Overflows a few times, grows every other iteration, by a number that is no power of two."""
    given: dict[str, Any] = {"growth_factor": 1.7, "growth_interval": 2}
    return torch.amp.GradScaler("cpu", init_scale=first, **(given | options))


def planned(module: nn.Module, inputs: Tensor | None = None, **options: Any) -> memplan.Step:
    x, labels = batches(1)[0]
    given: dict[str, Any] = {"budget": "95%", "solver": "rotor", "autocast": HALF, "cache": False}
    given |= {"loss_fn": functional.cross_entropy}
    return memplan.optimize(module, x if inputs is None else inputs, targets=labels, **(given | options))


def loop(
    module: nn.Module, optimizer: Any, scale: torch.amp.GradScaler, norm: float | None, step: Any = None
) -> list[Any]:
    """What it sees: losses, norms, scales. step: in the place of forward and loss."""
    rates = OneCycleLR(optimizer, 0.02, total_steps=20)
    torch.manual_seed(11)
    seen: list[Any] = []
    for x, labels in batches():
        if step is None:
            with torch.autocast("cpu", dtype=HALF):
                loss = functional.cross_entropy(module(x), labels)
        else:
            loss = step(x, targets=labels)
        scale.scale(loss).backward()
        if norm is not None:
            scale.unscale_(optimizer)
            seen.append(nn.utils.clip_grad_norm_(module.parameters(), norm))
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        rates.step()
        seen += [loss.detach(), scale.get_scale()]
    return seen


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(torch.as_tensor(a).nan_to_num(7.0), torch.as_tensor(b).nan_to_num(7.0))
        for a, b in zip(ours, theirs, strict=True)
    )


def assert_same(module: nn.Module, optimizer: Any, baseline: nn.Module, other: Any) -> None:
    for (name, ours), theirs in zip(module.named_parameters(), baseline.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        row, states = other.state[theirs], optimizer.state[ours]
        assert row.keys() == states.keys()
        assert all(torch.equal(row[state], states[state]) for state in row), name


def assert_falls_and_grows(scales: list[float]) -> None:
    changes = [after / before for before, after in pairwise((2.0**20, *scales))]
    assert changes[0] == 0.5
    assert any(change > 1 for change in changes)


@pytest.mark.scripts
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("norm", [None, 0.3])
def test_a_loop_around_a_step_scales_as_ever(norm: float | None) -> None:
    module = model()
    baseline = copy.deepcopy(module)
    optimizer, other = adamw(module), adamw(baseline)
    own, scales = scaler(), scaler()
    expected = loop(baseline, other, scales, norm)
    assert_falls_and_grows(expected[2 if norm else 1 :: 3 if norm else 2])
    step = planned(module, scaler=own)
    assert own.state_dict() == scaler().state_dict()
    assert same(loop(module, optimizer, own, norm, step), expected)
    assert own.state_dict() == scales.state_dict()
    assert len(step.plans) == 2
    assert_same(module, optimizer, baseline, other)


@pytest.mark.scripts
def test_accelerates_loop_over_two_batches_with_its_scaler() -> None:
    """It has none on the CPU, and is given one."""
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState

    def trained(planning: bool) -> tuple[nn.Module, list[Any]]:
        AcceleratorState._reset_state(True)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=2)
        accelerator.scaler, accelerator.native_amp = scaler(2.0**22), True
        module = Summed(model())
        optimizer = adamw(module)
        module, optimizer = accelerator.prepare(module, optimizer)
        step = module
        if planning:
            step = memplan.optimize(
                module,
                batches(1)[0],
                budget="95%",
                solver="rotor",
                scaler=accelerator.scaler,
                gradient_accumulation_steps=2,
                cache=False,
            )
        torch.manual_seed(11)
        seen: list[Any] = []
        for batch in batches():
            with accelerator.accumulate(module):
                loss = step(*batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    seen.append(accelerator.clip_grad_norm_(module.parameters(), 0.3))
                optimizer.step()
                optimizer.zero_grad()
            seen += [loss.detach(), accelerator.scaler.get_scale()]
        return module, seen

    (baseline, expected), (ours, seen) = trained(planning=False), trained(planning=True)
    assert expected[-1] < 2.0**22
    assert same(seen, expected)
    assert all(map(torch.equal, ours.parameters(), baseline.parameters()))


class Summed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.inner(x), labels)


def decays(module: nn.Module) -> torch.optim.Optimizer:
    """Two groups, fused."""
    small = [p for p in module.parameters() if p.dim() == 1]
    large = [p for p in module.parameters() if p.dim() > 1]
    return torch.optim.AdamW([{"params": large}, {"params": small, "weight_decay": 0.0}], lr=0.01, fused=True)


def radam(module: nn.Module) -> torch.optim.Optimizer:
    return unplanned.RAdam(module.parameters())


MOVED = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "joint", "time_limit": 0.5, "update": "after"}


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step", "ignore:RAdam is not in the plan")
@pytest.mark.parametrize(
    ("make", "norm", "options"),
    [
        (adamw, None, {}),
        (adamw, 0.3, MOVED),
        (decays, None, MOVED),
        (decays, 0.3, {}),
        (lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9, dampening=0.1, weight_decay=0.01), None, {}),
        (radam, 0.3, {"budget": "300%"}),
    ],
)
def test_updates_of_a_scaled_loss_are_those_of_plain_pytorch(
    make: Any, norm: float | None, options: dict[str, Any]
) -> None:
    module = model()
    baseline = copy.deepcopy(module)
    optimizer, other = make(module), make(baseline)
    own, scales = scaler(), scaler()
    expected = loop(baseline, other, scales, norm)
    step = planned(module, scaler=own, optimizer=optimizer, max_grad_norm=norm, **options)
    assert own.state_dict() == scaler().state_dict()
    rates = OneCycleLR(optimizer, 0.02, total_steps=20)
    torch.manual_seed(11)
    seen: list[Any] = []
    for x, labels in batches():
        before = own.get_scale()
        loss = step(x, targets=labels)
        assert step.optimizer_stepped == (own.get_scale() >= before)
        seen += [*([] if norm is None else [step.grad_norm]), loss, own.get_scale()]
        rates.step()
    assert_falls_and_grows(seen[2 if norm else 1 :: 3 if norm else 2])
    assert same(seen, expected)
    assert own.state_dict() == scales.state_dict()
    assert_same(module, optimizer, baseline, other)


@pytest.mark.scripts
def test_a_skipped_update_leaves_all_as_it_is() -> None:
    """States that the first iteration would have made are not there; with an average and undo."""
    module = model()
    optimizer, own = adamw(module), scaler(2.0**30, growth_interval=100)
    step = planned(module, scaler=own, optimizer=optimizer, ema=0.9, rollback_on_error=True, **MOVED)
    x, labels = batches(1)[0]
    known = copies(module, optimizer)
    while True:
        step(x, targets=labels)
        now = copies(module, optimizer)
        if step.optimizer_stepped:
            break
        assert now.keys() == known.keys()
        assert all(torch.equal(now[name], known[name]) for name in now)
    assert own.get_scale() < 2.0**20
    assert {name.rpartition(" ")[2] for name in now if " " in name} == {
        "exp_avg",
        "exp_avg_sq",
        "ema",
        "step",
    }
    step(x * torch.inf, targets=labels)
    assert not step.optimizer_stepped
    after = copies(module, optimizer)
    assert all(torch.equal(after[name], now[name]) for name in now)
    assert step.ema_state_dict().keys() == module.state_dict().keys()


@pytest.mark.filterwarnings("ignore:RAdam is not in the plan")
def test_updates_behind_the_plan_share_a_scale_over_several_batches(tmp_path: Path) -> None:
    """And go on from a checkpoint, with the scaler's growth."""
    module = model().eval()
    baseline = copy.deepcopy(module)
    optimizer, other = radam(module), radam(baseline)
    own, scales = scaler(2.0**21), scaler(2.0**21)
    step = planned(
        module,
        scaler=own,
        optimizer=optimizer,
        gradient_accumulation_steps=2,
        max_grad_norm=0.3,
        budget="400%",
    )
    updated: list[bool] = []
    for number, (x, labels) in enumerate(batches(16), start=1):
        loss = step(x, targets=labels)
        with torch.autocast("cpu", dtype=HALF):
            expected = functional.cross_entropy(baseline(x), labels)
        scales.scale(expected / 2).backward()
        assert torch.equal(loss, expected)
        if number % 2 == 0:
            scales.unscale_(other)
            norm = nn.utils.clip_grad_norm_(baseline.parameters(), 0.3)
            before = scales.get_scale()
            scales.step(other)
            scales.update()
            other.zero_grad()
            updated.append(step.optimizer_stepped)
            assert step.optimizer_stepped == (scales.get_scale() >= before)
            assert same([step.grad_norm], [norm])
        assert own.state_dict() == scales.state_dict()
        if number == 14:
            step.save(tmp_path, extra={"scaler": own})
            own.update(3.0)
            step.load(tmp_path, extra={"scaler": own})
            assert own.state_dict() == scales.state_dict()
    assert set(updated) == {True, False}
    assert_same(module, optimizer, baseline, other)


def copies(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    for name, parameter in module.named_parameters():
        row: dict[str, Tensor] = optimizer.state.get(parameter, {})
        found |= {f"{name} {state}": tensor.clone() for state, tensor in row.items()}
    return found


def test_float16_weights_with_masters_are_those_of_a_loop_by_hand() -> None:
    """The masters have the gradients in float32, unscaled and clipped there."""
    module = model().half().eval()
    baseline = copy.deepcopy(module)
    optimizer, own, scales = adamw(module), scaler(), scaler()
    masters = [nn.Parameter(p.detach().float()) for p in baseline.parameters()]
    other = torch.optim.AdamW(masters, lr=0.01)
    given = [(x.half(), labels) for x, labels in batches()]
    step = planned(
        module,
        inputs=given[0][0],
        budget="100%",
        autocast=None,
        loss_fn=in_float,
        scaler=own,
        optimizer=optimizer,
        master_weights=True,
        max_grad_norm=0.3,
    )
    for x, labels in given:
        loss = in_float(baseline(x), labels)
        scales.scale(loss).backward()
        for weight, master in zip(baseline.parameters(), masters, strict=True):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        scales.unscale_(other)
        total = nn.utils.clip_grad_norm_(masters, 0.3)
        scales.step(other)
        scales.update()
        with torch.no_grad():
            for weight, master in zip(baseline.parameters(), masters, strict=True):
                weight.copy_(master)
        assert torch.equal(step(x, targets=labels), loss)
        assert own.state_dict() == scales.state_dict()
        assert same([step.grad_norm], [total])
    assert scales.get_scale() < 2.0**20
    for ours, theirs, master in zip(module.parameters(), baseline.parameters(), masters, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(optimizer.state[ours]["master"], master)


def in_float(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output.float(), labels)


def gradients(module: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad()
    return found


@pytest.mark.scripts
def test_a_loss_scaled_otherwise_than_its_iteration() -> None:
    """Less is a division behind the plan, as of a loss that an update's batches share; more is refused."""
    module, own = model().eval(), scaler(2.0**10)
    step = planned(module, scaler=own)
    x, labels = batches(1)[0]
    own.scale(step(x, targets=labels)).backward()
    whole = gradients(module)
    own.scale(step(x, targets=labels) / 4).backward()
    assert all(torch.equal(a, b / 4) for a, b in zip(gradients(module), whole, strict=True))
    step(x, targets=labels).backward()
    assert all(torch.equal(a, b / 2**10) for a, b in zip(gradients(module), whole, strict=True))
    loss = step(x, targets=labels)
    own.update(2.0**12)
    with pytest.raises(memplan.MemplanError, match=r"times 4096: .*float16, for a loss times 1024, where"):
        own.scale(loss).backward()


@pytest.mark.scripts
def test_evaluation_and_buckets_know_no_scale() -> None:
    module = model()
    step = planned(
        module,
        scaler=scaler(2.0**10),
        return_outputs=True,
        pad_values={"0": (0.0, 0), "targets": (-100, 0)},
        pad_to_lengths=64,
    )
    x, labels = batches(1)[0]
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        expected = module.eval()(x)
        module.train()
    loss, output = step.evaluate(x, targets=labels)
    assert torch.equal(output[:48], expected)
    assert loss < 2


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, object])
def test_what_is_no_scaler_is_refused(kind: Any) -> None:
    with pytest.raises(memplan.InputError, match=r"scaler=a .*: give a torch.amp.GradScaler"):
        planned(model(), scaler=kind if kind is torch.amp.GradScaler else kind())


@pytest.mark.scripts
def test_one_that_is_not_enabled_is_none() -> None:
    module = model().eval()
    x, labels = batches(1)[0]
    planned(module, scaler=scaler(enabled=False))(x, targets=labels).backward()
    found = gradients(module)
    with torch.autocast("cpu", dtype=HALF):
        functional.cross_entropy(module(x), labels).backward()
    assert same(found, gradients(module))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"gradient_accumulation_steps": 2},
            "scaler and gradient_accumulation_steps are not planned together: leave optimizer= out",
        ),
        (
            {"module": model().half(), "autocast": None},
            "scaler: 0.weight is torch.float16, .* master_weights=True",
        ),
        ({"first": 1}, "scaler: 0.weight has a gradient and is none of the optimizer's"),
    ],
)
def test_what_is_not_planned_of_a_scaled_loss_is_refused(wrong: dict[str, Any], message: str) -> None:
    module = wrong.pop("module", model())
    parameters = list(module.parameters())[wrong.pop("first", 0) :]
    x = batches(1)[0][0].to(parameters[-1].dtype)
    with pytest.raises(memplan.InputError, match=message):
        planned(module, inputs=x, scaler=scaler(), optimizer=torch.optim.AdamW(parameters), **wrong)
