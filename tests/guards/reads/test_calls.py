"""A step is called as its module is: positional and keyword arguments together, defaults left out or given,
whatever wraps the module. `targets` is forward's if it has an argument of this name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

IDS, LABELS = torch.randint(16, (2, 4, 8))

Call = tuple[tuple[Any, ...], dict[str, Any]]

CALLS: list[Call] = [
    ((IDS, LABELS), {"return_logits": False}),
    ((), {"idx": IDS, "targets": LABELS, "return_logits": False}),
    ((IDS,), {"targets": LABELS, "scale": 0.5}),
    ((IDS, LABELS), {}),
    ((IDS, LABELS, True), {"scale": torch.tensor(2.0)}),
]


class Language(nn.Module):
    """nanoGPT's forward, with an argument by keyword alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, return_logits: bool = True, *, scale: Any = 1.0
    ) -> tuple[Tensor | None, Tensor | None]:
        logits = self.head(self.embedding(idx)) * scale
        loss = None if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return (logits if return_logits else None), loss


class Wrapper(nn.Module):
    """Hands all to the module inside, as PEFT's models do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.base_model = inner

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return self.base_model(*arguments, **keywords)


def _passing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return call


class Decorated(Language):
    forward = _passing(Language.forward)  # pyright: ignore[reportAssignmentType]


def _second(output: Any) -> Tensor:
    return output[1]


def planned(module: nn.Module, **options: Any) -> Any:
    given: dict[str, Any] = {"loss_fn": _second, "budget": 20_000, "solver": "store-all", "states": 0}
    return memplan.optimize(module, cache=False, **(given | options))


def eager(module: nn.Module, call: Call) -> tuple[Tensor, list[Tensor | None]]:
    module.zero_grad()
    loss = module(*call[0], **call[1])[1]
    loss.backward()
    gradients = [each.grad for each in module.parameters()]
    module.zero_grad()
    return loss.detach(), gradients


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (Language, CALLS),
        (lambda: Wrapper(Wrapper(Language())), CALLS[2:3]),
        (Decorated, CALLS[2:3]),
        pytest.param(
            lambda: torch.compile(Language(), backend="eager"), CALLS[2:3], marks=pytest.mark.scripts
        ),
    ],
    ids=["plain", "wrapped", "decorated", "compiled"],
)
def test_a_step_takes_what_its_module_takes(make: Callable[[], nn.Module], calls: list[Call]) -> None:
    module = make()
    step = planned(module)
    for call in calls:
        loss, gradients = eager(module, call)
        step(*call[0], **call[1]).backward()
        for mine, theirs in zip((each.grad for each in module.parameters()), gradients, strict=True):
            assert torch.equal(mine, theirs)  # pyright: ignore[reportArgumentType]
    assert torch.equal(step.evaluate(*calls[-1][0], **calls[-1][1]).loss, loss)
    with pytest.raises(memplan.MemplanError, match=r"unexpected keyword argument 'label"):
        step(IDS, labels=LABELS)


def test_an_example_with_targets_is_forwards() -> None:
    module = Language()
    step = planned(module, inputs=IDS, targets=LABELS)
    assert torch.equal(step(IDS, targets=LABELS), module(IDS, LABELS)[1])
    assert len(step.plans) == 1
    with pytest.raises(memplan.InputError, match="targets are given twice"):
        planned(module, inputs={"idx": IDS, "targets": LABELS}, targets=LABELS)


class Shifted(nn.Module):
    """Takes optional arguments, and a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, more: Any = None, ratio: Any = 1.0) -> Tensor:
        made = self.layer(x) * ratio
        if more is not None:
            made = made.sin()
        return made + sum(more or ())


@pytest.mark.scripts
def test_arguments_left_out_and_given_have_plans_of_their_own() -> None:
    """An empty list is not the default, 1 is neither True nor 1.0, and a NaN is itself."""
    module, x = Shifted(), torch.randn(4, 8)
    step = planned(module, loss_fn=lambda output: output.square().mean())
    call = memplan.optimize_module(module, x, budget=20_000, solver="store-all", cache=False, calls=9)
    keywords: list[dict[str, Any]] = [
        {},
        {"more": []},
        {"more": [x, x]},
        {"more": None, "ratio": torch.tensor(0.5)},
        {"ratio": 1},
        {"ratio": True},
        {"ratio": float("nan")},
        {"ratio": float("nan")},
    ]
    for each in keywords:
        expected = module(x, **each)
        assert torch.allclose(call(x, **each), expected, rtol=0, atol=0, equal_nan=True)
        loss = expected.square().mean()
        assert torch.allclose(step(x, **each), loss, rtol=0, atol=0, equal_nan=True)
    assert len(step.plans) == len(keywords) - 1


def test_a_loss_of_two_has_the_arguments_by_name() -> None:
    module, x = Shifted(), torch.randn(4, 8)
    step = planned(module, loss_fn=lambda output, inputs: (output * inputs["ratio"] - inputs["x"]).mean())
    assert torch.equal(step(x, ratio=0.5), (module(x, ratio=0.5) * 0.5 - x).mean())
