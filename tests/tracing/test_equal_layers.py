"""A trace of a few equal layers gives the program of the whole trace; other models are traced whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.devices.absent_gpu.capability import Capability
from memplan.model.iteration import Iteration
from memplan.profiling.profile.estimate import trace_for
from memplan.program.program import Program
from memplan.tracing import repeated
from memplan.tracing import trace as trace_module
from memplan.tracing.equal_layers import KEPT, EqualLayers, equal_layers
from memplan.tracing.joint import joint_graph
from memplan.updates.choice import OptimizerChoice
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # benchmarks/gpu_operations has small models of the usual kinds
from benchmarks.gpu_operations import models  # noqa: E402

AMPERE = Capability(8, 6)


def traced(
    build: Callable[[], Iteration], monkeypatch: pytest.MonkeyPatch, when: str = "in-backward"
) -> tuple[Program, Program, list[EqualLayers]]:
    """Return the program by some layers, the whole one, and the lists that were repeated."""
    put_back: list[EqualLayers] = []
    with_all = repeated.with_all_layers

    def noted(program: Program, layers: EqualLayers) -> Program:
        made = with_all(program, layers)
        put_back.append(layers)
        return made

    monkeypatch.setattr(repeated, "_verified", {})
    choice = OptimizerChoice("adamw", when)  # pyright: ignore[reportArgumentType]
    first = trace_for(AMPERE, build, choice)  # verified by forward's calls, or by the whole trace
    with monkeypatch.context() as patch:
        patch.setattr(repeated, "with_all_layers", noted)
        short = trace_for(AMPERE, build, choice)
    assert_same(first, short)
    with monkeypatch.context() as patch:
        patch.setattr(repeated, "equal_layers", lambda _module: [])
        whole = trace_for(AMPERE, build, choice)
    return short, whole, put_back


def assert_same(one: Program, other: Program) -> None:
    assert one.fingerprint == other.fingerprint
    assert one.operations == other.operations
    assert one.storages == other.storages
    assert one.values == other.values
    assert dict(one.views) == dict(other.views)
    for group in ("parameters", "buffers", "inputs", "gradients", "states"):
        assert list(getattr(one, group).items()) == list(getattr(other, group).items())
    assert one.loss == other.loss


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("name", "lists"),
    [
        ("gpt2", 1),
        *(pytest.param(*row, marks=pytest.mark.scripts) for row in (("llama-padded", 1), ("t5", 0))),
    ],
)
def test_the_program_is_that_of_the_whole_trace(
    name: str, lists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(models, "LAYERS", 6)
    short, whole, put_back = traced(lambda: Iteration(*models.MODELS[name](0.1)), monkeypatch)
    assert_same(short, whole)
    assert len(put_back) == lists


class OwnFormula(torch.autograd.Function):
    """The identity; in one layer the gradient is another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int) -> Tensor:
        ctx.number = number
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].sin() if ctx.number == 5 else gradients[0].cos(), None


class Layer(nn.Module):
    """A layer that counts itself; how it uses that is the test's."""

    def __init__(self, number: int, reads: str = "") -> None:
        super().__init__()
        self.number, self.reads = number, reads
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        if self.reads == "number" and self.number == 5:
            x = torch.sin(x)
        if self.reads == "formula":
            x = OwnFormula.apply(x, self.number)
        if self.reads == "hook":
            x.register_hook(lambda gradient: gradient.sin() if self.number == 5 else gradient.cos())
        if self.reads == "no gradient":
            with torch.set_grad_enabled(self.number != 5):
                x = x + torch.sin(x)
        return x + F.gelu(self.linear(self.norm(x)))


class Stack(nn.Module):
    """A model of equal layers, and its ways of using them."""

    def __init__(self, count: int, way: str = "") -> None:
        super().__init__()
        self.num_layers, self.way, self.chosen = count, way, 5
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList(Layer(n, way) for n in range(count))
        if way == "tied":
            for layer in self.layers[1:]:
                layer.linear = self.layers[0].linear  # pyright: ignore[reportAttributeAccessIssue]
        if way == "other last":
            self.layers[-1].linear = nn.Linear(8, 8, bias=False)  # pyright: ignore[reportAttributeAccessIssue]
        if way.startswith("head's weight"):
            self.last.weight = self.layers[int(way[-1])].linear.weight  # pyright: ignore
        if way.startswith("head's part"):
            self.last = self.layers[int(way[-1])].linear  # pyright: ignore[reportAttributeAccessIssue]
        if way == "frozen":
            self.layers[2].requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        between = [x]
        for n, layer in enumerate(self.layers):
            if self.way == "last" and n == self.num_layers - 1:
                x = torch.sin(x)
            if (self.way == "attribute" and n == self.chosen) or (self.way == "indices" and n in (3, 5)):
                x = torch.sin(x)
            x = layer(x if self.way != "skips" else x + between[0])
            if self.way == "reads":
                x = x + between[-2 if n == 5 else -1]
            between.append(x)
        if self.way == "all":
            x = torch.stack(between).sum(0)
        return self.last(x).square().mean()  # pyright: ignore[reportCallIssue]


class Fifth(Stack):
    """A model whose code has a layer's number."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for n, layer in enumerate(self.layers):
            x = layer(torch.sin(x) if n == 4 else x)
        return self.last(x).square().mean()  # pyright: ignore[reportCallIssue]


def stack(count: int, way: str = "") -> Iteration:
    kind = Fifth if way == "fifth" else Stack
    return Iteration(kind(count, way).train(), (torch.zeros(4, 8),))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["in-backward", "after"])
@pytest.mark.parametrize("count", [6, 9])
def test_layers_are_put_back(count: int, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short, whole, put_back = traced(partial(stack, count), monkeypatch, when)
    assert_same(short, whole)
    assert [(one.path, one.first, one.equal) for one in put_back] == [("layers", 0, count)]


WAYS = (
    *("number", "fifth", "attribute", "indices", "tied", "other last", "frozen", "all", "last", "skips"),
    *("formula", "hook", "no gradient", "reads"),
    *("head's weight 0", "head's weight 2", "head's weight 6", "head's part 2", "head's part 6"),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_others_are_traced_whole(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code reads which layer it is, or has a layer's number as a constant or attribute; a weight is in
    two layers; one layer is another; one is not trained; all layers' results are read; the last one's input
    is another; gradients of all are summed; a formula or hook for gradients, written in Python, is another
    in one layer; one layer computes without gradients; one reads another result by the same calls; a weight
    of a layer is the head's too, or the head is a part of a layer."""
    short, whole, put_back = traced(partial(stack, 8, way), monkeypatch)
    assert_same(short, whole)
    assert not put_back


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("way", "whole"), [("", 0), ("formula", 1), ("number", 1)])
def test_forward_of_all_layers_shows_that_they_are_equal(
    way: str, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No whole trace is needed for a model of PyTorch's own formulas."""
    traced_layers: list[int] = []

    def noted(iteration: Iteration, *rest: Any) -> Any:
        traced_layers.append(len(iteration.module.layers))  # pyright: ignore[reportArgumentType]
        return joint_graph(iteration, *rest)

    monkeypatch.setattr(trace_module, "joint_graph", noted)
    monkeypatch.setattr(repeated, "_verified", {})
    trace_for(AMPERE, partial(stack, 8, way), OptimizerChoice("adamw"))
    assert traced_layers.count(8) == whole
    assert traced_layers.count(KEPT) == 1


@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("head's")])
def test_a_layer_whose_weight_is_elsewhere_too_is_none_of_the_equal_ones(way: str) -> None:
    assert equal_layers(Stack(8, way)) == []
    assert equal_layers(Stack(8)) == [EqualLayers("layers", 0, 8)]


@pytest.mark.scripts
@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_model_is_not_taken_for_another_that_prints_alike(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated, "_verified", {})
    trace_for(AMPERE, partial(stack, 8))
    short = trace_for(AMPERE, partial(stack, 8, way))
    monkeypatch.setattr(repeated, "equal_layers", lambda _module: [])
    assert_same(short, trace_for(AMPERE, partial(stack, 8, way)))


def test_a_model_is_verified_again_if_a_number_or_its_code_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[nn.Module] = []
    monkeypatch.setattr(repeated, "_verified", {})
    monkeypatch.setattr(repeated, "_calls_repeat", lambda module, *_rest: verified.append(module) or True)
    monkeypatch.setattr(repeated, "_by_some", lambda *_rest: "program")
    other, two, three = Stack(8), Stack(8), Stack(8)
    other.chosen = 3
    two.add, three.add = (lambda x, by=by: x + by for by in (2, 3))  # pyright: ignore
    for model in (Stack(8), other, two, three, Stack(8), other, three):
        assert repeated.by_some_layers(model, list, print) == "program"  # pyright: ignore
    assert verified[1:] == [other, two, three]


def test_few_layers_are_traced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    _short, _whole, put_back = traced(partial(stack, 5), monkeypatch)
    assert not put_back
