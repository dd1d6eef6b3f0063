"""Code that a trace can follow though it looks at values, writes numbers, or holds odd things: bitwise as
eager."""

from __future__ import annotations

import copy

import memplan
import pytest
import torch
from not_none import not_none
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper


class Scaled(nn.Module):
    """A linear layer whose output is multiplied by what `factor(module, output, lengths)` makes."""

    def __init__(self, factor, **parts):
        super().__init__()
        self.linear, self.factor, self.parts = nn.Linear(4, 4), factor, nn.ModuleDict(parts)

    def forward(self, x, lengths):
        x = self.linear(x)
        return (x * self.factor(self, x, lengths)).square().mean()


def sparsemax(_module, x, _lengths):
    """The threshold's index follows from the scores: synthetic ones give -1."""
    ordered, _places = x.sort(-1, descending=True)
    counts = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    support = (1 + counts * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
    threshold = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
    return torch.clamp(x - threshold, min=0)


LISTS = {
    "whole numbers": lambda _module, _x, lengths: torch.tensor([each + 1 for each in lengths])[:, None],
    "with numbers": lambda _module, _x, lengths: torch.tensor([lengths[0], 0.5])[:, None],
    "double": lambda _module, x, _lengths: torch.tensor([x[0, 0].double(), x[1, 1]])[:, None].float(),
    "nested": lambda _m, _x, lengths: (
        torch.tensor([[lengths[0], 1], [2, lengths[1]]]).float().sum(1)[:, None]
    ),
    "of weights": lambda m, _x, _lengths: torch.tensor([m.linear.weight.max(), m.linear.bias.min()])[:, None],
    "as_tensor": lambda _m, _x, lengths: torch.as_tensor([*lengths], dtype=torch.float32)[:, None],
    "new_tensor": lambda _m, x, lengths: x.new_tensor([*lengths])[:, None],
    "tensors of one": lambda _m, _x, lengths: torch.tensor([lengths[:1], lengths[1:]])[:, None],
    "an int range": lambda _m, _x, lengths: torch.tensor([torch.arange(int(r)).max() + 1 for r in lengths])[
        :, None
    ],
}


COMPUTED = {
    "sparsemax": sparsemax,
    "a row of a table": lambda m, x, _lengths: m.parts["table"]((x * 10 - 9).long().clamp(0, 4)[:, 0]),
    "a class": lambda _m, x, _l: nn.functional.cross_entropy(x, (x.detach()[:, 0] * 9).long().remainder(4)),
    "a place": lambda _m, x, _l: torch.zeros_like(x).scatter(1, (x.detach() * 9).long().clamp(0, 3), x),
    "one hot": lambda _m, x, _l: nn.functional.one_hot((x.detach()[:, 0] * 9).long().clamp(0, 3), 4),
    "a written row": lambda _m, x, _l: torch.zeros_like(x).index_put(
        ((x.detach()[:, 0] * 90 - 3).long().clamp(0, 1),), x, accumulate=True
    ),
}


class Shared(nn.Module):
    """A layer used three times under autocast, which casts its weight once."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, _lengths):
        with torch.autocast("cpu", torch.bfloat16):
            for _time in range(3):
                x = self.linear(x).relu()
        return x.float().square().mean()


class Wrapped(nn.Module):
    def __init__(self, implementation):
        super().__init__()
        block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.GELU())
        self.first, self.block = nn.Linear(4, 4), checkpoint_wrapper(block, checkpoint_impl=implementation)

    def forward(self, x, _lengths):
        return self.block(self.first(x)).square().mean()


class Normed(nn.Module):
    def __init__(self, norm, cast=False):
        super().__init__()
        self.linear, self.norm, self.cast = nn.Linear(4, 4), norm, cast

    def forward(self, x, _lengths):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.cast):
            return self.norm(self.linear(x)).float().pow(3).mean()


class Inner(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).relu()


def written_rows(module, x, lengths):
    """The gradient of what is written picks by the mask."""
    made = torch.zeros_like(x)
    made[lengths > 2] = module.linear(x)[lengths > 2]
    return made.sin() + 1


CASES = {
    "a module made in forward": lambda: Scaled(lambda module, x, _lengths: Inner(module.linear)(x)),
    "rows written by a mask": lambda: Scaled(written_rows),
    **{f"a list of tensors: {name}": lambda factor=factor: Scaled(factor) for name, factor in LISTS.items()},
    **{
        f"an index computed: {name}": lambda factor=factor: Scaled(factor, table=nn.Embedding(5, 4))
        for name, factor in COMPUTED.items()
    },
    "a layer shared under autocast": Shared,
    "CheckpointWrapper": lambda: Wrapped(CheckpointImpl.NO_REENTRANT),
    "CheckpointWrapper, reentrant": lambda: Wrapped(CheckpointImpl.REENTRANT),
    "cumulative BatchNorm": lambda: Normed(nn.BatchNorm1d(4, momentum=None)),
    "cumulative BatchNorm, evaluated": lambda: Normed(nn.BatchNorm1d(4, momentum=None).eval()),
    "cumulative BatchNorm under autocast": lambda: Normed(nn.BatchNorm1d(4, momentum=None), cast=True),
    "BatchNorm without statistics under autocast": lambda: Normed(
        nn.BatchNorm1d(4, track_running_stats=False), cast=True
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_trains_as_eager(name):
    torch.manual_seed(0)
    check_trains_as_eager(CASES[name]())


def check_trains_as_eager(module, plans=None):
    """Three batches, the weights changed between them; losses, gradients, buffers, the random state after."""
    batches = [(torch.randn(2, 4), torch.tensor(lengths)) for lengths in ([3, 4], [1, 7], [2, 2])]
    other = copy.deepcopy(module)
    torch.manual_seed(1)
    known = [train(other, other, batch) for batch in batches]
    state = torch.get_rng_state()
    torch.manual_seed(1)
    step = memplan.optimize(module, batches[0], budget="100%", solver="store-all", cache=False)
    found = [train(module, step, batch) for batch in batches]
    assert torch.equal(torch.get_rng_state(), state)
    for own, theirs in zip(found, known, strict=True):
        assert own.keys() == theirs.keys()
        assert all(torch.equal(own[each], theirs[each]) for each in own)


def train(module, run, batch):
    loss = run(*batch)
    loss.backward()
    made = {f"{name}.grad": p.grad for name, p in module.named_parameters()}
    made |= {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
            parameter.grad = None
    return {"loss": loss.detach(), **{name: each for name, each in made.items() if each is not None}}


def test_anomaly_mode():
    """A plan does not look for NaN: it says so."""
    module, x = nn.Linear(4, 4), torch.randn(3, 4)
    with torch.autograd.set_detect_anomaly(True):
        with pytest.warns(UserWarning, match="does not look for NaN"):
            step = memplan.optimize(
                module, x, loss_fn=torch.sum, budget="100%", solver="store-all", cache=False
            )
        step(x).backward()
        assert torch.is_anomaly_enabled()
    assert torch.equal(not_none(module.bias.grad), torch.full((4,), 3.0))


# ── objects whose methods refuse ────────────────────────────────────────────────────────────────────


def refuse(*_arguments):
    raise NotImplementedError


REFUSING = dict.fromkeys(
    ("__len__", "__iter__", "__eq__", "__bool__", "__contains__", "__repr__", "copy", "items", "keys", "get"),
    refuse,
) | {"__hash__": None}


class Slotted:
    __slots__ = ("never_set",)

    def __getattr__(self, name):
        raise KeyError(name)


ODD = {
    **{
        base.__name__: lambda base=base: type("Odd", (base,), {**REFUSING})(())
        for base in (tuple, list, set, dict)
    },
    "object": type("Odd", (), REFUSING),
    "slots": Slotted,
}


class Holder(nn.Module):
    """As e3nn's modules, which hold an `Irreps`."""

    def __init__(self, thing):
        super().__init__()
        self.linear, self.thing, self.things = nn.Linear(4, 4), thing, [thing]

    def forward(self, x, _lengths):
        self.thing  # noqa: B018
        self.things  # noqa: B018
        return self.linear(x).square().mean()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ODD)
def test_objects_that_can_not_be_asked(name):
    module, batch = Holder(ODD[name]()), (torch.randn(3, 4), torch.tensor([1]))
    step = memplan.optimize(module, batch, budget="100%", solver="store-all", cache=False)
    loss = step(*batch)
    assert torch.equal(loss, module(*batch))
    assert torch.equal(step(*batch), loss)
