"""What traces and derived plans leave out gives the same as what they would have done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.devices.measuring.live_bytes import live_peak
from memplan.model.iteration import Iteration
from memplan.profiling.profile.sampled import multiplications, product_key
from memplan.program.program import Call, Program
from memplan.torch_support.torch_make_fx import make_fx
from memplan.torch_support.torch_trees import tree_leaves
from memplan.tracing import functional
from memplan.tracing.trace import trace
from torch import Tensor, nn, ops
from torch.utils import _pytree


class Turned(nn.Module):
    """A dropout of what lies transposed: its mask is drawn in the order of the memory."""

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 8), nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        return (self.drop(self.layer(x).transpose(0, 1)) * 2).square().mean()


class Constant(nn.Module):
    """A constant of the code, which changes in place."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.tensor([1.0, 2.0]).add_(1)).sum()


class Changing(nn.Module):
    """New memory that changes in place, and a view of it that is read later."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x) * 2
        part = made[:, ::2]
        made.add_(1)
        return part.square().mean()


def _gpt2() -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)
    tokens = torch.randint(64, (2, 8))
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens}


def _encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 5, 16),)


def _row(*layers: nn.Module, shape: tuple[int, ...] = (5, 6)) -> tuple[nn.Module, Any]:
    return nn.Sequential(*layers), (torch.randn(shape),)


MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], bool]] = {
    "gpt2": (_gpt2, True),
    "encoder": (_encoder, True),
    "turned": (lambda: _row(Turned()), True),
    "the rate that is a default": (lambda: _row(Turned(0.5)), True),
    "convolution": (
        lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.5)), (torch.randn(2, 3, 5, 5),)),
        False,
    ),
    "batch norm": (lambda: (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), (torch.randn(5, 6),)), False),
    "constant": (lambda: (nn.Sequential(nn.Linear(3, 2), Constant()), (torch.randn(5, 3),)), False),
    "changing": (lambda: (Changing(), (torch.randn(5, 6),)), False),
    "relu in place": (
        lambda: (nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True)), (torch.randn(5, 6),)),
        False,
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_that_needs_no_second_pass_gives_the_program_of_two(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, short = MODELS[name]
    torch.manual_seed(0)
    module, inputs = make()
    loss_fn = None if isinstance(inputs, dict) else lambda output: output.square().mean()  # pyright: ignore
    iteration = Iteration(module, inputs, loss_fn)
    passes = list[int]()
    monkeypatch.setattr(functional, "make_fx", lambda code: passes.append(1) or make_fx(code))
    once = trace(iteration)
    assert bool(passes) != short
    monkeypatch.setattr(functional, "_is_functional", lambda _graph: False)
    twice = trace(iteration)
    assert passes
    assert once.fingerprint == twice.fingerprint
    assert once.operations == twice.operations
    assert once.storages == twice.storages
    assert once.values == twice.values
    assert dict(once.views) == dict(twice.views)


NESTS = st.recursive(
    st.one_of(
        st.none(), st.integers(), st.floats(), st.text(max_size=2), st.just(torch.float32), st.just(slice(1))
    ),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), parts, max_size=3),
    ),
    max_leaves=12,
)


@given(NESTS)
@settings(max_examples=200, deadline=None)
def test_leaves_of_nests_are_those_of_torch(nest: object) -> None:
    assert repr(tree_leaves(nest)) == repr(_pytree.tree_leaves(nest))


LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "in rows": lambda rows, columns: torch.randn(rows, columns),
    "in columns": lambda rows, columns: torch.randn(columns, rows).t(),
    "a part of rows": lambda rows, columns: torch.randn(rows, columns + 3)[:, :columns],
    "each other": lambda rows, columns: torch.randn(rows, 2 * columns)[:, ::2],
    "repeated": lambda rows, columns: torch.randn(rows, 1).expand(rows, columns),
    "one row repeated": lambda rows, columns: torch.randn(1, columns).expand(rows, columns),
}


def product(target: Any, tensors: list[Tensor]) -> tuple[Program, Call, int]:
    """A program of one product, its call, and the bytes that it takes besides its result."""

    class Product(nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return target(*given)

    program = trace(Iteration(Product(), tuple(tensors), None, purpose="predict", outputs=True))
    peak, _left, result = live_peak(lambda: target(*tensors))
    return program, program.operations[0].call, peak - result.nbytes


@pytest.mark.scripts
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_products_that_lie_alike_take_alike(data: st.DataObject) -> None:
    sizes = st.sampled_from([1, 2, 3, 8, 33, 64])
    target = data.draw(st.sampled_from([ops.aten.mm.default, ops.aten.addmm.default, ops.aten.bmm.default]))

    def made() -> list[Tensor]:
        layouts = [data.draw(st.sampled_from(sorted(LAYOUTS))) for _ in range(2)]
        m, k, n = (data.draw(sizes) for _ in range(3))
        left, right = LAYOUTS[layouts[0]](m, k), LAYOUTS[layouts[1]](k, n)
        if target is ops.aten.bmm.default:
            return [torch.stack([left, left]), right.expand(2, -1, -1)]
        return [left, right] if target is ops.aten.mm.default else [torch.randn(n), left, right]

    (one, call, more), (other, twin, others) = product(target, made()), product(target, made())
    assert multiplications(one, call) > 0
    if product_key(one, call) == product_key(other, twin) and others == 0:
        assert more == 0
