"""A tensor that changes in place between a step and its `backward`: an error exactly where eager has one.

Each tensor that the script can reach is changed in turn: weights, buffers, constants, batch, labels. The
oracle is an eager twin: its error, or its gradients bit by bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from memplan.torch_support.torch_tensors import set_version
from not_none import not_none
from torch import Tensor, nn

SAVED = {
    *("scale", "order", "bits", "table", "seen", "mean", "constant", "loss_fn.weight"),
    *("norm.weight", "norm.running_mean", "norm.running_var"),
    *("still.weight", "still.running_mean", "still.running_var"),
    *("last.weight", "factor", "labels"),
}
"""Tensors that eager PyTorch saves: of others backward needs no values."""


class Net(nn.Module):
    """Layers and buffers of which backward needs some; it changes `seen`, `mean` and a norm's statistics."""

    order: Tensor
    table: Tensor
    seen: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 8)
        self.norm, self.still = nn.BatchNorm1d(8), nn.BatchNorm1d(8).eval()
        for name in ("scale", "shift", "cast"):
            self.register_buffer(name, torch.rand(8) + 0.5)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2, 5, 4, 7, 6]))
        self.register_buffer("bits", torch.tensor([True, False] * 4))
        self.register_buffer("table", torch.rand(3, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.ones(8))
        self.constant, self.added = torch.rand(8) + 0.5, torch.rand(8)

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        self.seen += 1
        hidden = self.still(self.norm(self.first(x + 1)))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        hidden = (hidden * self.scale + self.shift)[:, self.order].masked_fill(self.bits, 0.5)
        hidden = hidden * self.table[0] * self.seen * self.mean * self.cast.double().float()
        return self.last(hidden * self.constant * factor + self.added)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(32, 8), "factor": torch.rand(8), "labels": torch.randint(4, (32,))}


def criterion() -> nn.CrossEntropyLoss:
    return nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.5, 2.0, 1.5]))


class Twin:
    """A module with its criterion, and how the loss of a batch is computed."""

    def __init__(self, planned: Callable[[Net, Any], Any] | None = None) -> None:
        self.net, self.criterion = net(), criterion()
        self._planned = planned and planned(self.net, self.criterion)
        self._before = copy.deepcopy([each.detach() for each in self.tensors({}).values()])

    def tensors(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        constants = {"constant": self.net.constant, "added": self.net.added}
        return {**own, **constants, "loss_fn.weight": not_none(self.criterion.weight), **given}

    def loss(self, given: dict[str, Tensor]) -> Tensor:
        if isinstance(self._planned, memplan.Step) and not isinstance(self._planned, memplan.PlannedModule):
            return self._planned(given["x"], given["factor"], targets=given["labels"])
        module = self._planned or self.net
        return self.criterion(module(given["x"], given["factor"]), given["labels"])

    def put_back(self) -> None:
        """Put values back, and the counts of their changes: constants must not have changed."""
        self.net.zero_grad()
        for tensor, before in zip(self.tensors({}).values(), self._before, strict=True):
            version = tensor._version
            tensor.detach().copy_(before)
            set_version(tensor, version)

    def after(self, changed: str) -> str | list[Tensor]:
        """Return what backward leaves or raises after a change of this tensor; "": of none."""
        self.put_back()
        given = batch()
        loss = self.loss(given)
        tensor = self.tensors(given).get(changed)
        version = 0 if tensor is None else tensor._version
        if tensor is not None:
            change(tensor)
        try:
            loss.backward()
        except (RuntimeError, memplan.MismatchError) as error:
            return str(error)
        finally:
            if tensor is not None and changed in ("constant", "added", "loss_fn.weight"):
                self.put_back()
                set_version(tensor, version)
        buffers = [each.clone() for each in self.net.buffers()]
        return [*(each.grad for each in self.net.parameters() if each.grad is not None), *buffers]


def change(tensor: Tensor) -> None:
    with torch.no_grad():
        if tensor.dtype == torch.bool:
            tensor.logical_not_()
        elif tensor.dim() and not tensor.is_floating_point():
            tensor.copy_(tensor.flip(0))
        else:
            tensor.add_(1)


def step_at(budget: str) -> Callable[[Net, Any], Any]:
    def planned(module: Net, loss_fn: Any) -> Any:
        labels = batch().pop("labels")
        given = {name: x for name, x in batch().items() if name != "labels"}
        options: dict[str, Any] = {"budget": budget, "cache": False, "verify": False}
        return memplan.optimize(module, given, targets=labels, loss_fn=loss_fn, **options)

    return planned


def module_at(budget: str) -> Callable[[Net, Any], Any]:
    def planned(module: Net, _loss_fn: Any) -> Any:
        given = {name: x for name, x in batch().items() if name != "labels"}
        return memplan.optimize_module(module, given, budget=budget, cache=False, verify=False)

    return planned


AUTOGRAD, OWN = "modified by an inplace operation", "was changed in place after the planned module was called"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("planned", "words"),
    [
        pytest.param(step_at("100%"), AUTOGRAD, id="a step", marks=pytest.mark.scripts),
        pytest.param(step_at("85%"), AUTOGRAD, id="a step that recomputes", marks=pytest.mark.scripts),
        pytest.param(module_at("100%"), OWN, id="a module", marks=pytest.mark.scripts),
    ],
)
def test_an_error_exactly_where_eager_has_one(planned: Any, words: str) -> None:
    eager, own = Twin(), Twin(planned)
    for name in ("", *eager.tensors(batch())):
        expected, found = eager.after(name), own.after(name)
        assert isinstance(expected, str) == (name in SAVED), (name, expected)
        if isinstance(expected, str):
            assert AUTOGRAD in expected
            assert isinstance(found, str), f"{name} is saved, and its change is not noticed"
            assert (AUTOGRAD if name in ("labels", "loss_fn.weight") else words) in found, found
        else:
            assert not isinstance(found, str), f"{name}: {found}"
            assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True)), name


class Normed(nn.Module):
    """A batch norm; if `counted`, a buffer that forward changes and backward needs."""

    seen: Tensor

    def __init__(self, *, counted: bool) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(8, 8), nn.Linear(8, 4), nn.BatchNorm1d(8)
        self.register_buffer("seen", torch.zeros(()))
        self.counted = counted

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x))
        if self.counted:
            self.seen += 1
            hidden = hidden * self.seen
        return self.last(hidden).square().mean()


@pytest.mark.scripts
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("counted", [False, True], ids=["a norm", "a buffer"])
def test_two_losses_before_one_backward(*, counted: bool) -> None:
    """The kernel of a batch norm changes statistics without a count, `+=` of a buffer with one."""
    torch.manual_seed(0)
    module = Normed(counted=counted)
    eager, x = copy.deepcopy(module), torch.randn(6, 8)
    step = memplan.optimize(module, (x,), budget="100%", solver="store-all", cache=False)
    for _turn in range(3):
        for each in (eager, step):
            loss = each(x) + each(2 * x)
            if counted:
                with pytest.raises(RuntimeError, match=AUTOGRAD):
                    loss.backward()
            else:
                loss.backward()
    for own, other in zip(module.parameters(), eager.parameters(), strict=True):
        assert counted or torch.equal(not_none(own.grad), not_none(other.grad))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("moved", [False, True], ids=["on the device", "offloaded"])
def test_a_planned_update_counts_for_other_graphs(*, moved: bool) -> None:
    """A penalty that was computed before the step has autograd's error, if it has saved a weight."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    x = torch.randn(6, 8)
    options: dict[str, Any] = {"budget": "100%", "solver": "store-all"}
    if moved:
        options = {"budget": "95%", "solver": "l2l", "machine": Machine(links=Links(1e9, 1e9))}
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = memplan.optimize(module, (x,), loss_fn=torch.mean, optimizer=optimizer, cache=False, **options)
    weight: Any = module[2].weight
    for _turn in range(3):
        saved, not_saved = weight.square().sum(), weight.sum()
        step(x)
        step.restore_to_device()
        not_saved.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()
        module.zero_grad()
