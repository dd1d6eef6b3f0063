"""Each refusal names cause, place and a way on; the way on, followed, trains as eager PyTorch, bit by bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import memplan
import pytest
import torch
from memplan import MemplanError
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper
from torch.func import functional_call, hessian, jacrev, vmap
from torch.nn import functional


class Given(NamedTuple):
    """What `memplan.optimize` is given."""

    module: nn.Module
    inputs: Any
    loss_fn: Callable[..., Any] | None = None
    targets: Any = None

    def planned(self):
        options = {"loss_fn": self.loss_fn, "targets": self.targets}
        return memplan.optimize(
            self.module, self.inputs, budget="100%", solver="store-all", keep=False, **options
        )

    def eager(self, module):
        output = module(*self.inputs)
        if self.loss_fn is None:
            return output
        return self.loss_fn(output) if self.targets is None else self.loss_fn(output, self.targets)


class Case(NamedTuple):
    """make: with False what is refused, with True what follows the advice. line: what the refusal says."""

    make: Callable[[bool], Given]
    line: str


class Whole(nn.Module):
    """One linear layer, and what `run(module, output, *others)` makes of its output."""

    def __init__(self, run, **parts):
        super().__init__()
        self.linear, self.run, self.parts = nn.Linear(4, 4), run, nn.ModuleDict(parts)

    def forward(self, x, *others):
        return self.run(self, self.linear(x), *others).square().mean()


def whole(run, *others, **parts):
    return Given(Whole(run, **parts), (torch.randn(6, 4), *others))


def labelled(loss_fn, targets=None):
    return Given(nn.Linear(4, 4), (torch.randn(6, 4),), loss_fn, targets)


HERE = r"test_advice.py:\d+: "
OUTSIDE = HERE + r".*from outside.*give labels as targets"

# ── values ──────────────────────────────────────────────────────────────────────────────────────────


def picked_rows(follow):
    def run(_module, x):
        return x * (x[:, :1] > 0) if follow else x[x[:, 0] > 0]

    return whole(run)


def experts(follow):
    """Routed by hand."""

    def run(module, x):
        chosen, made = module.parts["gate"](x).argmax(-1), torch.zeros_like(x)
        for number in range(2):
            expert = module.parts[f"expert{number}"]
            if follow:
                made = made + expert(x) * (chosen == number)[:, None]
            else:
                rows = torch.where(chosen == number)[0]
                made = made.index_add(0, rows, expert(x[rows]))
        return made

    return whole(run, gate=nn.Linear(4, 2), expert0=nn.Linear(4, 4), expert1=nn.Linear(4, 4))


def counted_experts(follow):
    """Sorted by expert, or a fixed number of rows for each."""

    def run(module, x):
        scores = module.parts["gate"](x).softmax(-1)
        one, other = module.parts["expert0"], module.parts["expert1"]
        if follow:
            made = torch.zeros_like(x)
            for number, expert in enumerate((one, other)):
                weights, rows = scores[:, number].topk(4)
                made = made.index_add(0, rows, expert(x[rows]) * weights[:, None])
            return made
        chosen = scores.argmax(-1)
        sizes = torch.bincount(chosen, minlength=2).tolist()
        first, second = x[chosen.argsort()].split(sizes)
        return torch.cat([one(first), other(second)])

    return whole(run, gate=nn.Linear(4, 2), expert0=nn.Linear(4, 4), expert1=nn.Linear(4, 4))


def number(follow):
    def run(_module, x):
        return torch.where(x.sum() > 0, x, 2 * x) if follow else (x if x.sum() > 0 else 2 * x)

    return whole(run)


def equal(follow):
    def run(_module, x):
        same = (x == x.relu()).all()
        return torch.where(same, x, 2 * x) if follow else (x if torch.equal(x, x.relu()) else 2 * x)

    return whole(run)


def condition(follow):
    def run(_module, x):
        if follow:
            return torch.where(x.sum() > 0, x.sin(), x.cos())
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    return whole(run)


def matched(output, labels):
    """Each prediction goes to the label that NumPy finds nearest."""
    return torch.cdist(output.detach(), labels).argmin(0).numpy()


def matching(follow):
    labels = torch.randn(6, 4)
    if not follow:

        def loss(output, labels):
            return (output[torch.from_numpy(matched(output, labels))] - labels).square().mean()

        return labelled(loss, labels)
    given = labelled(lambda output, targets: (output[targets[1]] - targets[0]).square().mean())
    with torch.no_grad():
        places = torch.from_numpy(matched(given.module(*given.inputs), labels))
    return given._replace(targets=(labels, places))


def listed(follow):
    def run(_module, x):
        numbers = [x[0, 0].detach(), x[1, 1].detach()]
        return x * (torch.stack(numbers) if follow else torch.FloatTensor(numbers)).sum()

    return whole(run)


def written(follow):
    def run(_module, x):
        if not follow:
            print(f"{x.mean():.3f}")
        return x

    return whole(run)


# ── tensors from outside ────────────────────────────────────────────────────────────────────────────


def mask(follow):
    """PyTorch Geometric's line for training nodes."""
    known, classes = torch.tensor([True, False, True, True, False, True]), torch.tensor([0, 1, 2, 3, 0, 1])
    if follow:
        return labelled(
            lambda output, t: functional.cross_entropy(output[t[1]], t[0][t[1]]), (classes, known)
        )
    return labelled(lambda output, y: functional.cross_entropy(output[known], y[known]), classes)


def mask_number(follow):
    known = torch.tensor([True, False, True, True, False, True])
    if follow:
        return labelled(lambda output, known: output.square().sum() / int(known.sum()), known)
    return labelled(lambda output: output.square().sum() / int(known.sum()))


def index(follow):
    known, classes = torch.tensor([0, 2, 5]), torch.tensor([0, 1, 2])
    if follow:
        return labelled(lambda output, t: functional.cross_entropy(output[t[1]], t[0]), (classes, known))
    return labelled(lambda output, y: functional.cross_entropy(output[known], y), classes)


def packed(follow):
    """Lengths are an input, as the first way of tracing asks for; labels are not: the last one finds it."""
    gru, labels = nn.GRU(4, 4, batch_first=True), torch.randn(5, 4)

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = gru

        def forward(self, x, lengths):
            return self.gru(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0].data

    inputs = (torch.randn(2, 3, 4), torch.tensor([3, 2]))
    if follow:
        return Given(Packed(), inputs, lambda out, labels: (out - labels).square().mean(), labels)
    return Given(Packed(), inputs, lambda out: (out - labels).square().mean())


# ── sparse ──────────────────────────────────────────────────────────────────────────────────────────

ROWS, COLUMNS, VALUES = torch.tensor([0, 1, 5]), torch.tensor([1, 3, 2]), torch.tensor([1.0, 2.0, 3.0])


def adjacency():
    return torch.sparse_coo_tensor(torch.stack([ROWS, COLUMNS]), VALUES, (6, 6))


def by_index(_module, x, rows, columns, values):
    return torch.zeros(6, 4).index_add(0, rows, values[:, None] * x.index_select(0, columns))


def sparse_input(layout):
    def make(follow):
        if follow:
            return whole(by_index, ROWS, COLUMNS, VALUES)
        adjacent = adjacency().coalesce()
        adjacent = adjacent if layout == "coo" else adjacent.to_sparse_csr()
        return whole(lambda _m, x, adjacent: torch.sparse.mm(adjacent, x), adjacent)

    return make


def sparse_held(register):
    def make(follow):
        if follow:
            return sparse_input("coo")(follow)
        given = whole(lambda module, x: torch.sparse.mm(module.adjacent, x))
        register(given.module, "adjacent", adjacency())
        return given

    return make


def sparse_made(follow):
    if follow:
        return sparse_input("coo")(follow)

    def run(_module, x, rows, columns, values):
        return torch.sparse.mm(torch.sparse_coo_tensor(torch.stack([rows, columns]), values, (6, 6)), x)

    return whole(run, ROWS, COLUMNS, VALUES)


def sparse_gradient(follow):
    tokens = torch.tensor([0, 1, 1, 4, 5, 2])
    table = nn.Embedding(6, 4, sparse=not follow)
    return whole(lambda module, x, tokens: x + module.parts["table"](tokens), tokens, table=table)


# ── other operators ─────────────────────────────────────────────────────────────────────────────────


def derivatives(follow):
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    class Physics(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, x):
            weights = dict(self.network.named_parameters())

            def value(point):
                return functional_call(self.network, weights, (point,))[0]

            return vmap(jacrev(jacrev(value)) if follow else hessian(value))(x).square().mean()

    return Given(Physics(), (torch.randn(6, 4),))


def offloaded(follow):
    inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    return whole(
        lambda module, x: module.parts["inner"](x), inner=inner if follow else offload_wrapper(inner)
    )


def labels_as_inputs(follow):
    x, classes = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    if follow:
        return Given(nn.Linear(4, 4), (x,), functional.cross_entropy, classes)
    return Given(nn.Linear(4, 4), (x, classes), functional.cross_entropy)


CASES = {
    "picked rows": Case(picked_rows, HERE + ".*decide a shape.*multiply by weights of zero"),
    "experts": Case(experts, HERE + ".*decide a shape.*compute all of them and multiply by weights of zero"),
    "counted experts": Case(counted_experts, HERE + ".*bincount.*give each expert a fixed number of rows"),
    "a number": Case(number, HERE + ".*depends on the values of tensors.*use torch.where"),
    "equal": Case(equal, HERE + ".*aten.equal.*use torch.where"),
    "a condition": Case(condition, HERE + ".*operator that takes functions.*use torch.where"),
    "a matching": Case(matching, HERE + ".*values of a tensor to NumPy.*forward under torch.no_grad"),
    "a list": Case(listed, HERE + ".*native code; use torch.stack"),
    "a text": Case(written, HERE + ".*into a text; .*after the step"),
    "a mask in a closure": Case(mask, OUTSIDE),
    "the number of a mask in a closure": Case(mask_number, OUTSIDE),
    "an index in a closure": Case(index, OUTSIDE),
    "labels behind packed lengths": Case(packed, OUTSIDE),
    "coo input": Case(sparse_input("coo"), r"input 1 is a tensor of layout sparse_coo.*index_add"),
    "csr input": Case(sparse_input("csr"), r"input 1 is a tensor of layout sparse_csr.*index_add"),
    "sparse buffer": Case(sparse_held(nn.Module.register_buffer), r"adjacent is a .*sparse_coo.*index_add"),
    "sparse attribute": Case(sparse_held(setattr), HERE + "uses a sparse tensor.*index_add"),
    "made sparse": Case(sparse_made, HERE + "makes a sparse tensor.*index_add"),
    "a sparse gradient": Case(sparse_gradient, "a gradient is sparse: make the embedding with sparse=False"),
    "hessian": Case(derivatives, r"\(Physics\): .*forward-mode.*use jacrev\(jacrev\(f\)\)"),
    "OffloadWrapper": Case(offloaded, r"parts.inner is a OffloadWrapper.*without offload_wrapper"),
    "labels among inputs": Case(labels_as_inputs, r"\(Linear\): .*but 3 were given; .*goes in targets="),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", CASES)
def test_cause_place_and_way_on(name):
    torch.manual_seed(0)
    case = CASES[name]
    with pytest.raises(MemplanError, match=case.line) as caught:
        case.make(False).planned()
    assert "\n" not in str(caught.value)
    assert "memplan" not in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_the_way_on_trains_as_eager(name):
    torch.manual_seed(0)
    given = CASES[name].make(True)
    other = copy.deepcopy(given.module)
    step = given.planned()
    targets = {} if given.targets is None else {"targets": given.targets}
    for _iteration in range(3):
        losses = []
        for module in (given.module, other):
            loss = step(*given.inputs, **targets) if module is given.module else given.eager(module)
            loss.backward()
            losses.append(loss.detach())
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        assert torch.equal(*losses)
    assert all(map(torch.equal, given.module.parameters(), other.parameters()))


def test_labels_by_position():
    x, classes = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    with pytest.raises(memplan.InputError, match=r"give labels by name: optimize\(module, inputs, targets=…"):
        memplan.optimize(nn.Linear(4, 4), x, classes, loss_fn=functional.cross_entropy, budget="100%")


class OwnError(nn.Linear):
    """The error of its own code comes after it has looked at a value, which the first ways do not tell it."""

    def forward(self, x, sizes):
        if int(sizes.sum()) > 1:
            raise ValueError("mm_token_type_ids is missing")
        return super().forward(x)


def test_the_reason_is_that_of_the_way_that_went_furthest():
    given = Given(OwnError(4, 4), (torch.randn(3, 4), torch.tensor([2, 3])), torch.sum)
    with pytest.raises(MemplanError, match=HERE + "ValueError: mm_token_type_ids is missing$"):
        given.planned()
