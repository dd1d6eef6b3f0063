"""A step's loss stands where a plain one does: the same `.grad`, bit by bit, whoever calls `backward`."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from not_none import not_none
from torch import Tensor, nn
from torch.nn import functional


class Tied(nn.Module):
    """An embedding that is the last layer too, a layer in a layout of its own, one that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.wide = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.turned = nn.Parameter(torch.randn(8, 8).t())
        self.last = nn.Linear(8, 11)
        self.last.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.frozen(self.wide(self.embedding(words))) @ self.turned)


def loss_fn(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), labels.flatten())


def batch(seed: int, length: int = 6) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randint(11, (4, length)), torch.randint(11, (4, length))


def model() -> Tied:
    torch.manual_seed(3)
    return Tied()


def planned(module: nn.Module, **options: Any) -> memplan.Step:
    words, labels = batch(0)
    chosen: dict[str, Any] = {"budget": "100%", "solver": "rotor", "verify": False}
    return memplan.optimize(module, words, targets=labels, loss_fn=loss_fn, **{**chosen, **options})


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same(own: nn.Module, baseline: nn.Module) -> None:
    expected = gradients(baseline)
    for name, gradient in gradients(own).items():
        other = expected[name]
        assert (gradient is None) == (other is None), name
        if gradient is not None and other is not None:
            assert torch.equal(gradient, other), name
            assert gradient.stride() == other.stride(), name


MOVED = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l"}


@pytest.mark.scripts
@pytest.mark.parametrize("options", [{}, MOVED], ids=["device alone", "weights moved"])
def test_backward_leaves_what_plain_backward_leaves(options: dict[str, Any]) -> None:
    """Once, again beside what is there, a quarter of it, two losses at once, and after another shape."""
    module = model()
    baseline = copy.deepcopy(module)
    step = planned(module, **options)
    assert set(gradients(module).values()) == {None}

    def iteration(seed: int, length: int = 6) -> tuple[Tensor, Tensor]:
        words, labels = batch(seed, length)
        loss, other = step(words, targets=labels), loss_fn(baseline(words), labels)
        assert torch.equal(loss, other)
        return loss, other

    for length in (6, 6, 4, 6):
        for loss in iteration(length, length):
            loss.backward()
        assert_same(module, baseline)
    for loss in iteration(7):
        (loss / 4).backward()
    assert_same(module, baseline)
    for loss in iteration(8):
        loss *= 2
        loss.backward()
    assert_same(module, baseline)
    for each in (module, baseline):
        each.zero_grad()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not asked for")
        pairs = zip(iteration(9), iteration(10, 4), strict=True)
    for first, second in pairs:
        (first + second).backward()
    tied, expected = module.embedding.weight, baseline.embedding.weight  # plain adds its four parts otherwise
    assert torch.allclose(not_none(tied.grad), not_none(expected.grad), rtol=1e-5)
    tied.grad = expected.grad
    assert_same(module, baseline)


@pytest.mark.scripts
def test_gradients_are_taken_over_where_there_are_none_and_never_copied() -> None:
    module = model()
    step = planned(module)
    plan, taken = step.plans[0], dict[str, int]()
    iterate = plan.iterate

    def noted(inputs: Any) -> Any:
        outcome = iterate(inputs)
        taken.update({name: gradient.data_ptr() for name, gradient in outcome.gradients.items()})
        return outcome

    plan.iterate = noted
    words, labels = batch(1)
    for scale in (1, 4):
        module.zero_grad()
        (step(words, targets=labels) / scale).backward()
        there = {name: each.data_ptr() for name, each in gradients(module).items() if each is not None}
        assert there == taken
        assert "turned" in there


def test_a_loss_keeps_its_gradients_until_backward_or_its_end() -> None:
    step, (words, labels) = planned(model()), batch(1)
    plan, made = step.plans[0], list[weakref.ref[Tensor]]()
    run = plan.run

    def noted(inputs: Any, **options: Any) -> Any:
        outcome = run(inputs, **options)
        made[:] = map(weakref.ref, outcome.gradients.values())
        return outcome

    plan.run = noted
    loss = step(words, targets=labels)
    assert all(each() is not None for each in made)
    number, value = loss.detach(), loss.item()
    del loss
    assert all(each() is None for each in made)
    assert number == value


def test_backward_without_its_gradients_is_autograds_own_error() -> None:
    step, (words, labels) = planned(model()), batch(1)
    loss = step(words, targets=labels)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


@pytest.mark.scripts
def test_what_backward_needs_has_changed() -> None:
    """As in eager PyTorch, by its own error; what backward does not need may change."""
    module = model()
    step, (words, labels) = planned(module, cache=False), batch(1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    changes: dict[str, Callable[[Tensor], object]] = {
        "an update": lambda _words: optimizer.step(),
        "a weight": lambda _words: in_place(module.turned),
        "a frozen weight": lambda _words: in_place(module.frozen.weight),
        "a bias": lambda _words: in_place(module.last.bias),
        "the batch": in_place,
        "a checkpoint": lambda _words: module.load_state_dict(copy.deepcopy(module.state_dict())),
        "nothing": lambda _words: step.evaluate(words, targets=labels),
    }
    before = copy.deepcopy(module.state_dict())
    for name, change in changes.items():
        found: list[Any] = []
        for loss_of in (lambda x: loss_fn(module(x), labels), lambda x: step(x, targets=labels)):
            module.load_state_dict(before)
            module.zero_grad()
            given = words.clone()
            loss: Tensor = loss_of(given)
            loss.backward(retain_graph=True)
            change(given)
            try:
                loss.backward()
            except RuntimeError as error:
                found.append(str(error).split(":")[0])
            else:
                found.append([each.grad.clone() for each in module.parameters() if each.grad is not None])
        one, other = found
        assert isinstance(one, str) == (name not in ("a bias", "nothing")), name
        assert one == other if isinstance(one, str) else all(map(torch.equal, one, other)), name


def test_a_weight_with_other_memory_since_the_step_is_refused() -> None:
    module = model()
    step, (words, labels) = planned(module), batch(1)
    loss = step(words, targets=labels)
    module.turned.data = module.turned.data * 2
    with pytest.raises(memplan.MismatchError, match=r"given other memory after the step .* call loss\.back"):
        loss.backward()


def test_backward_twice_where_the_graph_is_kept() -> None:
    module = model()
    baseline = copy.deepcopy(module)
    words, labels = batch(1)
    for loss in (planned(module)(words, targets=labels), loss_fn(baseline(words), labels)):
        loss.backward(retain_graph=True)
        loss.backward(torch.tensor(2.0), retain_graph=True)
        loss.backward()
    assert_same(module, baseline)


@pytest.mark.scripts
def test_what_else_autograd_does_with_a_loss() -> None:
    """Some gradients only; a hook on a parameter that came after the iteration; no second derivative."""
    module = model()
    step, (words, labels) = planned(module), batch(1)
    bias, turned = module.last.bias, module.turned
    wanted = torch.autograd.grad(loss_fn(module(words), labels), [bias, turned])
    found = torch.autograd.grad(step(words, targets=labels), [bias, turned])
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    assert bias.grad is None

    loss = step(words, targets=labels)
    seen: list[Tensor] = []
    handle = bias.register_hook(seen.append)
    loss.backward(inputs=[bias])
    assert torch.equal(seen[0], wanted[0])
    assert turned.grad is None
    bias.grad = None
    handle.remove()
    with pytest.raises(memplan.MemplanError, match="no second derivative"):
        torch.autograd.grad(step(words, targets=labels), [turned], create_graph=True)


@pytest.mark.scripts
def test_a_third_is_rounded_once_more() -> None:
    module = model()
    baseline = copy.deepcopy(module)
    words, labels = batch(1)
    step = planned(module)
    with pytest.warns(UserWarning, match=r"loss times 0\.333333: its gradients round once more") as caught:
        (step(words, targets=labels) / 3).backward()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.zero_grad()
        (step(words, targets=labels) / 3).backward()
    (loss_fn(baseline(words), labels) / 3).backward()
    for name, gradient in gradients(baseline).items():
        if gradient is not None:
            assert torch.allclose(
                not_none(module.get_parameter(name).grad), gradient, rtol=1e-5, atol=1e-8
            ), name


USES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "half": (lambda loss: loss / 2, True),
    "times eight": (lambda loss: 8 * loss, True),
    "negative": (lambda loss: -loss, True),
    "with a penalty": (lambda loss: loss + 0.3, True),
    "a third": (lambda loss: loss / 3, False),
    "weighted": (lambda loss: 0.3 * loss + 1, False),
    "squared": (lambda loss: loss**2, False),
    "its logarithm": (lambda loss: loss.log(), False),
}
"""What a loop makes of a loss before `backward`, and whether gradients are bitwise eager PyTorch's."""


@pytest.mark.scripts
def test_gradients_are_bitwise_where_they_are_promised() -> None:
    """A power of two is exact; any other factor is said, and rounds once more."""
    module = model()
    baseline = copy.deepcopy(module)
    words, labels = batch(1)
    step = planned(module)
    for name, (use, exact) in USES.items():
        module.zero_grad()
        baseline.zero_grad()
        step._executor.losses._rounded = False
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use(step(words, targets=labels)).backward()
        assert ["round once more" in str(each.message) for each in caught] == ([] if exact else [True]), name
        use(loss_fn(baseline(words), labels)).backward()
        if exact:
            assert_same(module, baseline)
        for own, other in zip(module.parameters(), baseline.parameters(), strict=True):
            assert own.grad is other.grad or torch.allclose(
                not_none(own.grad), not_none(other.grad), rtol=1e-4, atol=1e-6
            ), name


@pytest.mark.scripts
def test_gradients_that_nobody_asks_for_are_told_once() -> None:
    step, (words, labels) = planned(model()), batch(1)
    step(words, targets=labels)
    with pytest.warns(UserWarning, match="not asked for, and its loss is gone: call loss.backward") as caught:
        step(words, targets=labels)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(words, targets=labels)


def test_a_loss_whose_updates_are_done_says_so() -> None:
    module = model()
    step = planned(module, optimizer=torch.optim.AdamW(module.parameters()))
    words, labels = batch(1)
    loss = step(words, targets=labels)
    for use in (
        loss.backward,
        (loss / 4).backward,
        lambda: torch.amp.GradScaler("cpu").scale(loss).backward(),
    ):
        with pytest.raises(
            memplan.MemplanError, match=r"has updated the weights already: leave loss\.backward"
        ):
            use()
    with torch.no_grad():
        assert not step(words, targets=labels).requires_grad


@pytest.mark.scripts
def test_where_gradients_could_not_be_had_a_step_is_refused() -> None:
    step, (words, labels) = planned(model()), batch(1)
    for nobody in (torch.no_grad, torch.inference_mode):
        with nobody(), pytest.raises(memplan.MismatchError, match=r"under torch.no_grad\(\)"):
            step(words, targets=labels)
    module = nn.Linear(3, 2)
    step = memplan.optimize(module, torch.ones(4, 3), budget="100%", loss_fn=torch.sum, verify=False)
    with pytest.raises(memplan.MismatchError, match=r"input 0 requires a gradient.*optimize_module"):
        step(torch.ones(4, 3, requires_grad=True))


def test_float16_is_not_scaled_afterwards() -> None:
    """What is 0 without the scale stays 0."""
    module = nn.Linear(3, 2).half()
    x = torch.ones(4, 3).half()
    options: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False}
    step = memplan.optimize(module, x, loss_fn=lambda output: output.float().sum(), **options)
    step(x).backward()
    module.zero_grad()
    with pytest.raises(memplan.MemplanError, match=r"times 65536: .*float16"):
        torch.amp.GradScaler("cpu").scale(step(x)).backward()
