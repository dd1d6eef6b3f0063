"""Modules whose weights are computed: functional calls, parametrizations, norms of weights; Keras models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

WIDTH = 8
X, Y = torch.randn(6, WIDTH), torch.randint(WIDTH, (6,))


class Called(nn.Module):
    """A layer that is called with weights computed of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weights: dict[str, Tensor] = dict(self.inner.named_parameters())
        weights["0.weight"] = 2 * weights["0.weight"]
        return functional_call(self.inner, {**weights, "0.bias": self.shift}, (x,))


class Adapted(nn.Module):
    """One step of gradient descent inside, as in MAML."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weights: dict[str, Tensor] = dict(self.inner.named_parameters())
        loss = functional_call(self.inner, weights, (x,)).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        better = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        return functional_call(self.inner, better, (x,))


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).t()


def linear(change: Callable[[nn.Linear], nn.Module | None]) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(change(layer) or layer, nn.Tanh())


MODULES: dict[str, Callable[[], nn.Module]] = {
    "functional call": Called,
    "gradient descent inside": Adapted,
    "parametrize": lambda: linear(
        lambda own: parametrize.register_parametrization(own, "weight", Symmetric())
    ),
    "weight norm, old": lambda: linear(weight_norm),
    "weight norm": lambda: linear(parametrizations.weight_norm),
    "spectral norm, old": lambda: linear(spectral_norm),
    "spectral norm": lambda: linear(parametrizations.spectral_norm),
    "orthogonal": lambda: linear(parametrizations.orthogonal),
}


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def assert_bitwise(
    make: Callable[[], nn.Module], targets: Any, loss_fn: Callable[..., Tensor], *, planned_updates: bool
) -> None:
    """Train two iterations and compare with eager PyTorch."""
    mine, other = seeded(make), seeded(make)
    own, theirs = (torch.optim.SGD(module.parameters(), 0.1, momentum=0.9) for module in (mine, other))
    step = memplan.optimize(
        mine,
        X,
        targets=targets,
        loss_fn=loss_fn,
        optimizer=own if planned_updates else None,
        budget="100%",
        solver="store-all",
        cache=False,
    )
    for turn in range(2):
        torch.manual_seed(turn)
        own.zero_grad()
        loss = step(X, targets=targets)
        if not planned_updates:
            loss.backward()
            own.step()
        torch.manual_seed(turn)
        theirs.zero_grad()
        expected = loss_fn(other(X), targets)
        expected.backward()
        theirs.step()
        assert torch.equal(loss, expected)
    for name, tensor in other.state_dict().items():
        assert torch.equal(mine.state_dict()[name], tensor), name


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("planned_updates", [False, True])
@pytest.mark.parametrize("kind", MODULES)
def test_computed_weights_train_bitwise(kind: str, planned_updates: bool) -> None:
    assert_bitwise(MODULES[kind], Y, functional.cross_entropy, planned_updates=planned_updates)


def test_a_loss_may_call_the_module_with_other_weights() -> None:
    torch.manual_seed(0)
    module = nn.Linear(WIDTH, WIDTH)

    def loss_fn(output: Tensor, targets: Tensor) -> Tensor:
        halved = {name: weight / 2 for name, weight in module.named_parameters()}
        return functional.cross_entropy(functional_call(module, halved, (output,)), targets)

    step = memplan.optimize(
        module, X, targets=Y, loss_fn=loss_fn, budget="100%", solver="store-all", cache=False
    )
    loss = step(X, targets=Y)
    loss.backward()
    found = [weight.grad for weight in module.parameters()]
    module.zero_grad()
    expected = loss_fn(module(X), Y)
    expected.backward()
    assert torch.equal(loss, expected)
    for one, weight in zip(found, module.parameters(), strict=True):
        assert one is not None
        assert weight.grad is not None
        assert torch.equal(one, weight.grad)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "rows", [torch.tensor([True, False] * 3), torch.tensor([0, 3, 5])], ids=["mask", "index"]
)
def test_rows_are_picked_by_a_target(rows: Tensor) -> None:
    def loss_fn(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        labels, picked = targets
        return functional.cross_entropy(output[picked], labels[picked])

    assert_bitwise(lambda: nn.Linear(WIDTH, WIDTH), (Y, rows), loss_fn, planned_updates=False)


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, memplan, torch
def model():
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="gelu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.LayerNormalization()(hidden)))
x, y = torch.randn(6, 8), torch.randint(4, (6,))
mine, other = model(), model()
other.set_weights(mine.get_weights())
loss_fn = torch.nn.functional.cross_entropy
optimizers = [torch.optim.Adam(each.parameters(), 0.01) for each in (mine, other)]
step = memplan.optimize(mine, x, targets=y, loss_fn=loss_fn, budget="100%", solver="store-all", cache=False)
for turn in range(3):
    optimizers[0].zero_grad()
    loss = step(x, targets=y)
    loss.backward()
    optimizers[0].step()
    optimizers[1].zero_grad()
    expected = loss_fn(other(x), y)
    expected.backward()
    optimizers[1].step()
    assert torch.equal(loss, expected), turn
pairs = list(zip(mine.parameters(), other.parameters(), strict=True))
assert len(pairs) == 6 and all(torch.equal(*pair) for pair in pairs)
"""


@pytest.mark.scripts
def test_a_keras_model_trains_bitwise_in_a_loop_of_its_own() -> None:
    """In a process of its own, since Keras chooses PyTorch when it is imported."""
    pytest.importorskip("keras")
    done = subprocess.run([sys.executable, "-c", KERAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
