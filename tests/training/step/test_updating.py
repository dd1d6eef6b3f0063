"""Several batches for one update, as (loss / N).backward(), clip_grad_norm_, step and zero_grad make it."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
import unplanned
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memplan.devices.device.device import Device
from memplan.graphs.graph import Phase
from memplan.graphs.machine import Links, Machine
from memplan.runtime.run.cycle import Cycle
from memplan.runtime.run.recovery import BEGINS_ANEW, UNDONE
from memplan.training.plans.training_log import TrainingLog
from memplan.training.progress import progress_callback
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR, StepLR

MANY = 3
pytestmark = pytest.mark.filterwarnings("ignore:.*the sums of gradients take")
MOVED = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "joint", "time_limit": 0.5}


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.LayerNorm(16), nn.Linear(16, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Two updates, and one batch that is left; a smaller one among them."""
    torch.manual_seed(7)
    return [(torch.randn(n, 6), torch.randint(3, (n,))) for n in (48, 48, 48, 48, 20, 48, 48)]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, 0.9)


def nadam(module: nn.Module) -> torch.optim.Optimizer:
    """No plan has its updates."""
    return unplanned.NAdam(module.parameters(), 0.01)


def planned(module: nn.Module, optimizer: Any, batch: Any = None, **options: Any) -> memplan.Step:
    x, labels = batches()[0] if batch is None else batch
    own = {"targets": labels, "loss_fn": functional.cross_entropy, "budget": "95%", "solver": "rotor"}
    own |= {"optimizer": optimizer, "gradient_accumulation_steps": MANY, "max_grad_norm": 0.3, "cache": False}
    return memplan.optimize(module, x, **(own | options))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (adamw, {"max_grad_norm": None, "budget": "100%"}),
        (adamw, {"update": "after"}),
        (adamw, {**MOVED, "budget": "85%"}),
        (sgd, {**MOVED, "budget": "85%", "max_grad_norm": None}),
        (nadam, {}),
    ],
    ids=["right behind each gradient", "clipped", "clipped and moved", "moved", "without a plan"],
)
def test_several_batches_for_one_update_are_those_of_plain_pytorch(make: Any, options: Any) -> None:
    module, data = model(), batches()
    baseline = copy.deepcopy(module)
    optimizer, other = make(module), make(baseline)
    step = planned(module, optimizer, **options)
    rates, others = OneCycleLR(optimizer, 0.02, total_steps=8), OneCycleLR(other, 0.02, total_steps=8)
    torch.manual_seed(11)
    seen: list[Any] = []
    for x, labels in data:
        seen.append(step(x, targets=labels))
        assert step.optimizer_stepped or step.grad_norm is None
        if step.optimizer_stepped:
            seen.append(step.grad_norm)
            rates.step()
    assert not step.optimizer_stepped
    step.update()
    assert step.optimizer_stepped
    seen.append(step.grad_norm)

    torch.manual_seed(11)
    expected: list[Any] = []
    for number, (x, labels) in enumerate(data, start=1):
        loss = functional.cross_entropy(baseline(x), labels)
        (loss / MANY).backward()
        expected.append(loss.detach())
        if number % MANY == 0 or number == len(data):
            clipped = options.get("max_grad_norm", 0.3) is not None
            expected.append(nn.utils.clip_grad_norm_(baseline.parameters(), 0.3) if clipped else None)
            other.step()
            other.zero_grad()
            if number % MANY == 0:
                others.step()
    step.restore_to_device()
    for mine, theirs in zip(seen, expected, strict=True):
        assert mine is theirs if theirs is None else torch.equal(mine, theirs)
    assert all(map(torch.equal, module.parameters(), baseline.parameters()))


def test_a_batch_that_is_refused_adds_nothing() -> None:
    module = model()
    baseline = copy.deepcopy(module)
    step, other = planned(module, sgd(module), max_plans=1), sgd(baseline)
    whole = [(x, labels) for x, labels in batches() if len(x) == 48][:MANY]
    torch.manual_seed(11)
    for number, (x, labels) in enumerate(whole):
        step(x, targets=labels)
        if number == 0:
            with pytest.raises(memplan.MemplanError):
                step(x[:20].double(), targets=labels[:20])
    assert step.optimizer_stepped
    torch.manual_seed(11)
    for x, labels in whole:
        (functional.cross_entropy(baseline(x), labels) / MANY).backward()
    nn.utils.clip_grad_norm_(baseline.parameters(), 0.3)
    other.step()
    assert all(map(torch.equal, module.parameters(), baseline.parameters()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"gradient_accumulation_steps": 0},
            "gradient_accumulation_steps=0: give a whole number, 1 or more",
        ),
        ({"gradient_accumulation_steps": 2.0}, r"gradient_accumulation_steps=2\.0"),
        ({"gradient_accumulation_steps": True}, "gradient_accumulation_steps=True"),
        (
            {"optimizer": None, "max_grad_norm": None},
            "gradient_accumulation_steps goes with optimizer=.*loss / N",
        ),
        (
            {"rollback_on_error": True, "optimizer": nadam(model())},
            "rollback_on_error=True needs planned updates",
        ),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    module = model()
    with pytest.raises(memplan.InputError, match=message):
        planned(module, **({"optimizer": sgd(module)} | wrong))


class Fault:
    """In the n-th operation that is given to the device."""

    left = 0

    def around(self, target: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("on purpose")
            return target(*arguments, **keywords)

        return run


class Masked(nn.Module):
    """A model whose code depends on values of its batch, and on what the batch's tensors are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weighted = x if bool(mask.all()) else x * mask
        return self.inner(weighted if getattr(x, "scale", None) is None else x)


def test_an_update_without_a_batch_compares_no_values_of_batches() -> None:
    data = batches()[:1]
    module = Masked()
    eager = copy.deepcopy(module)
    optimizer, other = adamw(module), adamw(eager)
    (x, labels), mask = data[0], torch.ones(48, 1)
    step = memplan.optimize(
        module,
        (x, mask),
        targets=labels,
        loss_fn=functional.cross_entropy,
        optimizer=optimizer,
        gradient_accumulation_steps=MANY,
        budget="100%",
        cache=False,
    )
    torch.manual_seed(1)
    step(x, mask, targets=labels)
    assert not step.optimizer_stepped
    step.update()
    torch.manual_seed(1)
    (functional.cross_entropy(eager(x, mask), labels) / MANY).backward()
    other.step()
    assert all(map(torch.equal, module.parameters(), eager.parameters()))


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    made = Fault()
    launched = Device.launched
    monkeypatch.setattr(Device, "launched", lambda *given: made.around(launched(*given)))
    return made


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options", [{}, {**MOVED, "budget": "85%"}, {"rollback_on_error": True}, {"max_grad_norm": None}]
)
def test_a_call_that_fails_adds_nothing_or_the_update_begins_anew(options: Any, fault: Fault) -> None:
    """Each third call fails somewhere: as if it had not been, or as if the sums had then been made zero."""
    module = model()
    baseline = copy.deepcopy(module)
    optimizer, other = sgd(module), sgd(baseline)
    options = {"max_grad_norm": 0.3, **options}
    step = planned(module, optimizer, verify=False, **options)
    numbers = random.Random(1)
    x, labels = batches()[0]
    notes: list[str] = []
    waiting = 0
    torch.manual_seed(5)
    for call in range(30):
        before = torch.get_rng_state()
        if call % 3 == 2:
            runs = (
                step.plans[0] if waiting == MANY - 1 else step._executor.planner.parts[step.plans[0]].adding
            )  # pyright: ignore[reportPrivateUsage]
            updates = [n for n, each in enumerate(runs.program.operations) if each.phase == Phase.UPDATE]
            last = (
                updates[0]
                if waiting == MANY - 1 and not options.get("rollback_on_error")
                else len(runs.program.operations)
            )
            fault.left = numbers.randint(1, last)
            with pytest.raises(RuntimeError, match="on purpose") as caught:
                step(x, targets=labels)
            assert torch.equal(before, torch.get_rng_state())
            notes += caught.value.__notes__
            if caught.value.__notes__ == [BEGINS_ANEW]:
                other.zero_grad()
                waiting = 0
            continue
        loss = step(x, targets=labels)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        expected = functional.cross_entropy(baseline(x), labels)
        assert torch.equal(loss, expected)
        assert torch.equal(after, torch.get_rng_state())
        (expected / MANY).backward()
        waiting += 1
        if waiting == MANY:
            waiting = 0
            if options["max_grad_norm"]:
                assert torch.equal(step.grad_norm, nn.utils.clip_grad_norm_(baseline.parameters(), 0.3))  # pyright: ignore[reportArgumentType]
            other.step()
            other.zero_grad()
        assert step.optimizer_stepped == (waiting == 0)
    step.restore_to_device()
    assert all(map(torch.equal, module.parameters(), baseline.parameters()))
    assert set(notes) == {UNDONE} if options.get("rollback_on_error") else {UNDONE, BEGINS_ANEW}


@pytest.mark.scripts
@pytest.mark.parametrize("options", [{"max_grad_norm": None}, {**MOVED, "budget": "85%"}])
def test_a_run_goes_on_in_the_midst_of_an_update(options: Any, tmp_path: Path) -> None:
    """With SGD, whose first step is another than the later ones: it is in the update that is broken off."""
    whole, given = model(), [batches()[0]] * 7
    step = planned(whole, sgd(whole), verify=False, **options)
    torch.manual_seed(11)
    for number, (x, labels) in enumerate(given):
        step(x, targets=labels)
        if number == 1:
            step.save(tmp_path)
    step.restore_to_device()
    for at in ("in the midst", "between updates"):
        module = model()
        optimizer = sgd(module)
        second = planned(module, optimizer, verify=False, **options)
        second(*given[0][:1], targets=given[0][1])  # what is loaded takes the place of sums that are there
        second.load(tmp_path)
        first = 2 if at == "in the midst" else 3
        for number in range(first, 7):
            second(given[number][0], targets=given[number][1])
            if number == 2:
                second.save(tmp_path)
        second.restore_to_device()
        assert all(map(torch.equal, module.parameters(), whole.parameters()))
        assert "accumulated" in optimizer.param_groups[0]


def test_sums_of_another_number_of_batches_are_refused() -> None:
    module = model()
    optimizer = sgd(module)
    x, labels = batches()[0]
    planned(module, optimizer, verify=False)(x, targets=labels)
    step = planned(module, optimizer, verify=False, gradient_accumulation_steps=2)
    with pytest.raises(
        memplan.MismatchError, match="sums of 1 of 3 batches; the plan has gradient_accumulation_steps=2"
    ):
        step(x, targets=labels)


@pytest.mark.scripts
def test_parts_hand_over_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy is made between the batches of an update and the last one."""
    module = model()
    step = planned(module, adamw(module), **MOVED, budget="70%", max_grad_norm=None, verify=False)
    plan = step.plans[0].cycle
    adding = step._executor.planner.parts[step.plans[0]].adding.cycle  # pyright: ignore[reportPrivateUsage]
    assert plan is not None
    assert adding is not None
    x, labels = batches()[0]
    step(x, targets=labels)
    for way in ("_fetched", "_copy", "_filled"):
        monkeypatch.delattr(Cycle, way)
    for _ in range(2 * MANY):
        step(x, targets=labels)
        own, other = (plan, adding) if step.optimizer_stepped else (adding, plan)
        assert own.held
        assert own.host.count.bytes
        assert not other.held
        assert not other.host.count.bytes


def nesterov(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, 0.9, nesterov=True, weight_decay=0.01)


@pytest.mark.scripts
@given(
    low=st.booleans(),
    make=st.sampled_from([torch.optim.AdamW, nesterov]),
    ema=st.sampled_from([None, 0.75]),
    clip=st.sampled_from([None, 0.2]),
    options=st.sampled_from([{}, {"update": "after"}, {**MOVED, "budget": "100%"}]),
    lengths=st.lists(st.sampled_from([48, 48, 20]), min_size=4, max_size=7),
)
@example(True, torch.optim.AdamW, 0.75, 0.2, {**MOVED, "budget": "100%"}, [48, 20, 48, 48, 20])
@settings(max_examples=2, deadline=None, derandomize=True)
def test_all_that_updates_can(
    low: bool, make: Any, ema: float | None, clip: float | None, options: Any, lengths: list[int]
) -> None:
    """Masters, averages, clipping, shapes, outputs, rates that move, an evaluation between two batches."""
    dtype = torch.bfloat16 if low else torch.float32
    module = nn.Sequential(model(), nn.BatchNorm1d(3)).to(dtype)
    baseline = copy.deepcopy(module)
    weights = list(baseline.parameters())
    masters = [nn.Parameter(weight.detach().float()) if low else weight for weight in weights]
    averages = [master.detach().clone() for master in masters]
    optimizer, other = make(module.parameters()), make(masters)
    rates, others = StepLR(optimizer, 1, 0.5), StepLR(other, 1, 0.5)
    x, labels = torch.randn(48, 6, dtype=dtype), torch.randint(3, (48,))
    options = {
        "master_weights": low,
        "ema": ema,
        "max_grad_norm": clip,
        "return_outputs": True,
        "verify": False,
        **options,
    }
    step = planned(module, optimizer, batch=(x, labels), **options)
    for number, length in enumerate(lengths, start=1):
        torch.manual_seed(number)
        loss = step(x[:length], targets=labels[:length])
        torch.manual_seed(number)
        returned = baseline(x[:length])
        expected = functional.cross_entropy(returned, labels[:length])
        assert torch.equal(loss, expected)
        assert torch.equal(step.output, returned)
        (expected / MANY).backward()
        if number == len(lengths):
            step.update()
        if step.optimizer_stepped:
            if clip is not None:
                assert torch.equal(step.grad_norm, nn.utils.clip_grad_norm_(weights, clip))  # pyright: ignore[reportArgumentType]
            with torch.no_grad():
                for weight, master in zip(weights, masters, strict=True):
                    assert weight.grad is not None
                    master.grad = weight.grad.float() if low else weight.grad
                other.step()
                for weight, master, average in zip(weights, masters, averages, strict=True):
                    weight.copy_(master)
                    weight.grad = None
                    average.lerp_(master, 1 - (ema or 0))
            rates.step()
            others.step()
        elif number == 2:
            baseline.eval()
            assert torch.equal(
                step.evaluate(x, targets=labels).loss, functional.cross_entropy(baseline(x), labels)
            )
            baseline.train()
    if ema is not None:
        found = step.ema_state_dict()
        for (name, _), average in zip(baseline.named_parameters(), averages, strict=True):
            assert torch.equal(found[name], average.to(dtype)), name
    step.restore_to_device()
    for name, tensor in baseline.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor), name


def test_the_planned_peak_is_that_of_an_updates_largest_plan() -> None:
    module, log = model(), TrainingLog(progress_callback(False))
    steps = [planned(module, sgd(module), budget=budget) for budget in ("100%", "80%")]
    larger, smaller = (each._executor.book.plan(each.plans[0]) for each in steps)  # pyright: ignore[reportPrivateUsage]
    planner = steps[1]._executor.planner  # pyright: ignore[reportPrivateUsage]
    log.joined(steps[0].plans[0], larger, None)
    log.opened(steps[1].plans[0], smaller, None, planner)
    peaks = [each.plan.figures.peak for each in steps]
    assert log.prediction(steps[1].plans[0], planner).figures.peak == peaks[0] > peaks[1]
