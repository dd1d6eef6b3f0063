"""The trace's own `make_fx` gives PyTorch's graphs, node by node.

The oracle is torch's `make_fx`, on functions with every kind of call that it treats specially, and on models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from iterations import example
from memplan.torch_support import torch_make_fx
from memplan.torch_support.torch_fakes import FakeTensorMode
from memplan.torch_support.torch_make_fx import make_fx
from memplan.tracing import functional, joint
from memplan.tracing.trace import trace
from torch import Tensor, fx
from torch.fx.experimental import proxy_tensor


def nodes(graph: fx.GraphModule) -> list[tuple[object, ...]]:
    """All that a node says: names, arguments, the forms of its results and in whose memory they lie."""
    memories: dict[int, int] = {}

    def form(val: Any) -> object:
        if isinstance(val, Tensor):
            memory = memories.setdefault(val.untyped_storage()._cdata, len(memories))
            return type(val), val.shape, val.stride(), val.storage_offset(), val.dtype, val.device, memory
        return (type(val), *map(form, val)) if isinstance(val, tuple | list) else val

    return [
        (node.op, node.target, node.name, repr(node.args), repr(node.kwargs), form(node.meta.get("val")))
        for node in graph.graph.nodes
    ]


def same(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[tuple[object, ...]]:
    """Check that both trace the function to the same nodes, and return these."""
    found: list[list[tuple[object, ...]]] = []
    for tracing in (make_fx, proxy_tensor.make_fx):
        with FakeTensorMode(allow_non_fake_inputs=True):
            examples = [torch.empty(shape, requires_grad=True) for shape in shapes]
            found.append(nodes(tracing(function)(*examples)))
    assert found[0] == found[1]
    return found[0]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators whose calls are noted the short way, as they come."""
    calls: list[Any] = []
    note = torch_make_fx._ShortCalls._note

    def noted(self: Any, made: Any, node: fx.Node) -> None:
        calls.append(node.target)
        note(self, made, node)

    monkeypatch.setattr(torch_make_fx._ShortCalls, "_note", noted)
    return calls


def gradients(x: Tensor, weight: Tensor) -> list[Tensor]:
    loss = torch.nn.functional.layer_norm(x @ weight, (4,)).relu().sum()
    return [loss, *torch.autograd.grad(loss, [x, weight])]


def lists(x: Tensor) -> list[Tensor]:
    first, *others = x.split(2)
    return [first + others[-1], *x.unbind(1), *torch.var_mean(x), torch.cat([*x.chunk(2)], dim=-1)]


def in_place(x: Tensor) -> Tensor:
    y = x.detach().clone()
    y.add_(1)[0].mul_(2)
    y.t_()
    z = y[1:]
    z.unsqueeze_(0)
    return y.sum() + z.sum()


def constants(x: Tensor) -> Tensor:
    two = torch.tensor(2.0)
    return x * (two + 1) if (two * 2).item() == 4 else x - two


def factories(x: Tensor) -> Tensor:
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    y = torch.where(mask, x, torch.full((), float("-inf")))
    return y + torch.arange(4, device="cpu") + torch.zeros_like(x, memory_format=torch.preserve_format)


def random(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x, 0.3) + torch.rand(4) + torch.randn_like(x)


def missing_results(x: Tensor) -> list[Tensor | None]:
    out, mean, rstd = torch.ops.aten.native_layer_norm(x, [4], None, None, 1e-5)
    mask = [True, False, False]
    return [*torch.ops.aten.native_layer_norm_backward(out, x, [4], mean, rstd, None, None, mask)]


def not_tensors(x: Tensor) -> Tensor:
    length = torch.ops.aten.sym_size.int(x, 0)
    return x.reshape(-1, length) * x.shape[1] * (1 if x.is_same_size(x) else 2)


def taken_apart(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.nn.functional.linear(x, x)


def outside(x: Tensor) -> Tensor:
    return x + WEIGHT + PARAMETER


WEIGHT = torch.ones(4)
PARAMETER = torch.nn.Parameter(torch.ones(4))


def branches(x: Tensor) -> Tensor:
    return torch.cond(torch.ones((), dtype=torch.bool), torch.sin, torch.cos, (x.detach(),))


def another_trace(x: Tensor) -> Tensor:
    proxy_tensor.make_fx(torch.sin)(torch.empty(3))
    return x.cos()


@pytest.mark.parametrize(
    "function",
    [
        *(lists, in_place, constants, factories, random, missing_results, not_tensors),
        *(taken_apart, outside, branches, another_trace),
    ],
)
def test_functions_have_pytorchs_graphs(function: Callable[..., Any]) -> None:
    assert len(same(function, (4, 4))) > 2


def test_gradients_have_pytorchs_graph_by_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    made = same(gradients, (6, 4), (4, 4))
    assert [target for op, target, *_rest in made if op == "call_function" and target in calls] == calls


def test_what_the_code_changes_of_a_form_later_does_not_change_its_node() -> None:
    """A node keeps the form of before `t_`: later nodes have the other."""

    def turned(x: Tensor) -> Tensor:
        y = x + 1
        y.t_()
        return y.sum(0)

    (added,) = (
        form for op, target, *_rest, form in same(turned, (2, 3)) if target is torch.ops.aten.add.Tensor
    )
    assert added[1] == (2, 3)  # pyright: ignore[reportIndexIssue]


def test_an_error_of_a_kernel_is_raised_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="same reduction dim"):
        same(lambda x: x @ x, (2, 3))


def test_options_leave_pytorchs_trace_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    table = {torch.ops.aten.silu.default: lambda x: x * torch.sigmoid(x)}
    with FakeTensorMode():
        graph = make_fx(lambda x: torch.nn.functional.silu(x), decomposition_table=table)(torch.empty(3))
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.sigmoid.default,
        torch.ops.aten.mul.Tensor,
    ]
    assert not calls


@pytest.mark.scripts
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["mlp", "gpt2", "bert", "llama", "t5", "vit", "transformer", "unet"])
def test_models_have_the_programs_of_pytorchs_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    iteration = example(name)
    calls = counted(monkeypatch)
    short = trace(iteration)
    assert len(calls) > len(short.operations)  # and of the views
    with monkeypatch.context() as patch:
        for file in (joint, functional):
            patch.setattr(file, "make_fx", proxy_tensor.make_fx)
        usual = trace(iteration)
    assert short.fingerprint == usual.fingerprint
    assert short.values == usual.values
    assert short.storages == usual.storages
