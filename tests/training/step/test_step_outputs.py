"""What the module returns, beside the loss: plain PyTorch's tensors, bit by bit, as a result of the plan."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from memplan.profiling.profile.profile import measure_program
from memplan.training.plans import front_end
from torch import Tensor, nn
from torch.nn import functional


class Returned(NamedTuple):
    hidden: list[Tensor]
    logits: Tensor
    best: dict[str, Any]


class Model(nn.Module):
    """Returns a nest: what layers make, the logits, two views of one memory, numbers and None."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)) for _ in range(3)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Returned:
        hidden: list[Tensor] = []
        for layer in self.layers:
            x = x + layer(x)
            hidden.append(x)
        logits = self.head(x)
        return Returned(
            hidden, logits, {"class": logits.argmax(1), "first": logits[:, 0], "n": 4, "no": None}
        )


def loss_of(output: Returned, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output.logits, labels)


def batches(lengths: tuple[int, ...] = (40, 12, 40)) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(length, 16), torch.randint(4, (length,))) for length in lengths]


def planned(module: nn.Module, **options: Any) -> Any:
    x, labels = batches()[0]
    given: dict[str, Any] = {"targets": labels, "loss_fn": loss_of, "budget": "100%", "solver": "rotor"}
    return memplan.optimize(module, x, **(given | options))


def assert_same(own: Any, theirs: Any) -> None:
    """The same nest, the same bits."""
    assert type(own) is type(theirs)
    if isinstance(theirs, Tensor):
        assert torch.equal(own, theirs)
        assert not own.requires_grad
    elif isinstance(theirs, dict):
        assert own.keys() == theirs.keys()
        for name, part in theirs.items():
            assert_same(own[name], part)
    elif isinstance(theirs, list | tuple):
        assert len(own) == len(theirs)
        for one, other in zip(own, theirs, strict=True):
            assert_same(one, other)
    else:
        assert own == theirs


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("solver", "updates", "moved"),
    [("rockmate", True, False), ("joint", False, True)],
)
def test_outputs_in_training_are_plain_pytorchs(solver: str, updates: bool, moved: bool) -> None:
    module = Model()
    baseline, optimizer = copy.deepcopy(module), torch.optim.AdamW(module.parameters(), lr=0.01)
    theirs = torch.optim.AdamW(baseline.parameters(), lr=0.01)
    machine = Machine(links=Links(1e9, 1e9)) if moved else None
    more = {"machine": machine, "optimizer": optimizer if updates else None, "time_limit": 0.5}
    step = planned(module, return_outputs=True, budget="75%", solver=solver, **more)
    torch.manual_seed(11)
    seen: list[Returned] = []
    for x, labels in batches():
        loss = step(x, targets=labels)
        seen.append(step.output)
        if not updates:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.manual_seed(11)
    for (x, labels), own in zip(batches(), seen, strict=True):
        output = baseline(x)
        loss_of(output, labels).backward()
        theirs.step()
        theirs.zero_grad()
        detached = Returned(
            [part.detach() for part in output.hidden],
            output.logits.detach(),
            {**output.best, "first": output.best["first"].detach()},
        )
        assert_same(own, detached)
        assert own.best["first"].data_ptr() == own.logits.data_ptr()
    for own, other in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.scripts
def test_outputs_are_part_of_the_plan_and_of_its_peak() -> None:
    """Without them the hidden layers go with the backward pass."""
    (x, labels), *_ = batches()
    peaks: list[int] = []
    for wanted in (False, ("logits",), ("hidden", "logits")):
        step = planned(Model(), return_outputs=wanted)
        peaks.append(step.plans[0].budget)
        step(x, targets=labels)
        results = step.plans[0].program.results
        assert len(results) == 1 + bool(wanted) + 3 * ("hidden" in (wanted or ())) + 14
    assert peaks[0] <= peaks[1] < peaks[2]


def test_names_choose_and_what_is_not_chosen_is_none() -> None:
    (x, labels), *_ = batches()
    step = planned(Model(), return_outputs=("logits", "hidden.1"))
    assert step.output is None
    step(x, targets=labels)
    output: Any = step.output
    hidden, logits, best = output
    assert [part is None for part in hidden] == [True, False, True]
    assert logits.shape == (40, 4)
    assert best == {"class": None, "first": None, "n": 4, "no": None}


@pytest.mark.scripts
def test_outputs_go_when_the_next_iteration_starts() -> None:
    (x, labels), (y, more) = batches((40, 12))
    step = planned(Model(), return_outputs="logits")
    step(x, targets=labels).backward()
    gone = weakref.ref(step.output.logits)
    with pytest.raises(memplan.MemplanError):
        step(x.double(), targets=labels)
    step(y, targets=more)
    gc.collect()
    assert gone() is None
    assert step.output.logits.shape == (12, 4)


@pytest.mark.scripts
def test_kept_plans_are_for_the_outputs_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(
        front_end,
        "measure_program",
        lambda *given, **more: done.append("measured") or measure_program(*given, **more),
    )
    (x, labels), *_ = batches()
    for wanted in (False, "logits", "hidden", "logits"):
        step = planned(Model(), return_outputs=wanted, cache=tmp_path)
        step(x, targets=labels)
        assert (step.output is None) == (wanted is False)
    assert len(done) == 3


class Odd(nn.Module):
    """Returns what it was given, or what is its own."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.linear = what, nn.Linear(16, 4)
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x: Tensor) -> dict[str, Any]:
        self.steps += 1
        logits = self.linear(x)
        others: dict[str, Any] = {
            "input": x[1:],
            "weight": self.linear.weight[0],
            "buffer": self.steps,
            "object": slice(3),
            "sum": logits.sum() * 0,
        }
        return {"logits": logits, "loss": logits.square().mean(), self.what: others[self.what]}


def odd(what: str, **options: Any) -> Any:
    given: dict[str, Any] = {"budget": "100%", "solver": "rotor", "return_outputs": True, "loss_fn": None}
    return planned(
        Odd(what), targets=None, **{name: given[name] for name in given if name not in options}, **options
    )


def test_an_input_that_is_returned_is_a_copy_of_it() -> None:
    (x, _labels), *_ = batches()
    step = odd("input")
    loss = step(x)
    assert torch.equal(step.output["input"], x[1:])
    assert step.output["input"].data_ptr() != x[1:].data_ptr()
    assert torch.equal(step.output["loss"], loss)
    assert not step.output["loss"].requires_grad


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("weight", "the output weight lies in linear.weight, which iterations change: read it there"),
        ("buffer", "the output buffer lies in steps, which iterations change: read it there"),
        ("object", r"the output object is a slice, which can't be taken apart: .*outputs=\('logits',\)"),
    ],
)
def test_what_is_no_result_is_refused_and_the_rest_can_be_named(what: str, message: str) -> None:
    with pytest.raises(memplan.InputError, match=message):
        odd(what)
    (x, _labels), *_ = batches()
    step = odd(what, return_outputs=["logits"])
    step(x)
    assert step.output.keys() == {"logits", "loss", what}
    assert step.output[what] is None


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("logit", "the module returns no 'logit': it returns logits, loss, sum"),
        ((), r"return_outputs=\(\): give True, or names"),
        ((1,), r"return_outputs=\(1,\): give True, or names"),
    ],
)
def test_outputs_that_there_are_not_are_refused(wanted: Any, message: str) -> None:
    with pytest.raises(memplan.InputError, match=message):
        odd("sum", return_outputs=wanted)


def test_a_loss_that_changes_the_output_in_place_changes_it_here_too() -> None:
    module, (x, labels) = nn.Linear(16, 4), batches()[0]

    def halved(output: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(output.div_(2), labels)

    step = planned(module, loss_fn=halved, return_outputs=True)
    step(x, targets=labels)
    with torch.no_grad():
        assert torch.equal(step.output, module(x) / 2)
