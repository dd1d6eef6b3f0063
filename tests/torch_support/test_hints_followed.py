"""Each refusal names cause, place and a way on; the way on, followed, trains as eager PyTorch, bit by bit."""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import memplan
import numpy as np
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
            self.module, self.inputs, budget="100%", solver="store-all", cache=False, **options
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


HERE = r"test_hints_followed.py:\d+: "
OUTSIDE = HERE + r".*from outside.*give labels, masks and indices as targets"

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


@torch.library.custom_op("test_advice::nearest", mutates_args=())
def nearest(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(matched(scores, labels))


@nearest.register_fake
def _shape_of_nearest(scores, labels):
    return scores.new_empty(labels.shape[0], dtype=torch.int64)


def matching_in_an_operator(follow):
    """The other way on: the operator is called with the values."""

    def loss(output, labels):
        places = nearest(output.detach(), labels) if follow else torch.tensor(matched(output, labels))
        return (output[places] - labels).square().mean()

    return labelled(loss, torch.randn(6, 4))


def blurred(x):
    """SciPy's filters and their like: NumPy in, NumPy out, linear, of a symmetric kernel."""

    def convolve(column):
        return np.convolve(column, [1, 2, 1], "same")

    return torch.from_numpy(np.apply_along_axis(convolve, 0, x.detach().numpy()))


blur = torch.library.custom_op("test_advice::blur", blurred, mutates_args=(), schema="(Tensor x) -> Tensor")
blur.register_fake(torch.empty_like)
blur.register_autograd(lambda _context, gradient: blur(gradient))


def filtered(follow):
    return whole(lambda _module, x: (blur if follow else blurred)(x).sin())


def of_numbers(follow):
    """A matching by `tolist()`."""

    def loss(output, labels):
        if follow:
            places = nearest(output.detach(), labels)
        else:
            places = torch.tensor([row.index(min(row)) for row in torch.cdist(output, labels).T.tolist()])
        return (output[places] - labels).square().mean()

    return labelled(loss, torch.randn(6, 4))


torch.library.define("test_advice::halves", "(Tensor x) -> Tensor")
torch.library.define("test_advice::halves_known", "(Tensor x) -> Tensor")
torch.library.impl("test_advice::halves", "CPU", lambda x: x[::2] / 2)
torch.library.impl("test_advice::halves_known", "CPU", lambda x: x[::2] / 2)
torch.library.register_fake("test_advice::halves_known", lambda x: x[::2].clone())


def fake_kernel(follow):
    """A library's operator in C++, like torchaudio's RNNT loss."""
    operators = torch.ops.test_advice
    operator = operators.halves_known if follow else operators.halves

    def run(_module, x):
        return x[::2] * operator(x.detach())

    return whole(run)


class Initialized(nn.Module):
    """ActNorm: the first batch sets the scale."""

    def __init__(self, buffer):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.register_buffer("done", torch.tensor(False)) if buffer else setattr(self, "done", False)

    def forward(self, x):
        x = self.linear(x)
        if not self.done:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
                if isinstance(self.done, bool):
                    self.done = True
                else:
                    self.done.fill_(True)
        return (x * self.scale).pow(3).mean()


def initialized(buffer):
    def make(follow):
        given = Given(Initialized(buffer), (torch.randn(6, 4),))
        if follow:
            given.module(*given.inputs)
        return given

    return make


class Queue(nn.Module):
    """MoCo's: rows are written in turn."""

    rows: torch.Tensor
    place: torch.Tensor

    def __init__(self, follow):
        super().__init__()
        self.linear, self.follow = nn.Linear(4, 4), follow
        self.register_buffer("rows", torch.randn(18, 4))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        x = self.linear(x)
        loss = (x @ self.rows.T.clone()).square().mean()
        with torch.no_grad():
            if self.follow:
                self.rows.index_copy_(0, (self.place + torch.arange(6)) % 18, x)
            else:
                place = int(self.place)
                self.rows[place : place + 6] = x
            self.place.copy_((self.place + 6) % 18)
        return loss


def queue(follow):
    return Given(Queue(follow), (torch.randn(6, 4),))


class State(nn.Module):
    """A mean that goes on from batch to batch. start: what it is before the first."""

    def __init__(self, start, follow):
        super().__init__()
        self.linear, self.follow = nn.Linear(4, 4), follow
        if follow:
            self.register_buffer("mean", torch.zeros(4))
        else:
            self.mean = start

    def forward(self, x):
        x = self.linear(x)
        if self.mean is None:
            self.mean = torch.zeros(4)
        if self.follow:
            self.mean.copy_(0.9 * self.mean + 0.1 * x.detach().mean(0))
        else:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return (x - self.mean).square().mean()


def state(start):
    return lambda follow: Given(State(start, follow), (torch.randn(6, 4),))


class Last(nn.Module):
    """Compares with the batch before."""

    before: torch.Tensor

    def __init__(self, follow):
        super().__init__()
        self.linear, self.follow, self.last = nn.Linear(4, 4), follow, {}
        self.register_buffer("before", torch.zeros(6, 4))

    def forward(self, x):
        x = self.linear(x)
        if self.follow:
            before = self.before.clone()
            self.before.copy_(x.detach())
        else:
            before = self.last.get("x", torch.zeros(6, 4))
            self.last["x"] = x.detach()
        return (x - before).square().mean()


def last(follow):
    return Given(Last(follow), (torch.randn(6, 4),))


def spline(follow):
    """Inside of an interval a curve, outside of it the identity, as in nflows."""

    def run(_module, x):
        inside = (x > -1) & (x < 1)
        if follow:
            return torch.where(inside, x.clamp(-1, 1).pow(3), x)
        made = torch.zeros_like(x)
        made[inside], made[~inside] = x[inside].pow(3), x[~inside]
        return made

    return whole(run)


def listed(follow):
    def run(_module, x):
        numbers = [x[0, 0].detach(), x[1, 1].detach()]
        return x * (torch.stack(numbers) if follow else torch.FloatTensor(numbers)).sum()

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
        return whole(lambda _m, x, adjacent: adjacent.to_dense() @ x, adjacent)

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


# ── tensors of other classes ────────────────────────────────────────────────────────────────────────


class Named(torch.Tensor):
    """A class of its own, like an image's."""

    def __deepcopy__(self, memo):
        return self.clone()

    def width(self):
        return self.shape[-1]


def retyped(follow):
    return whole(lambda _module, x: x.as_subclass(torch.Tensor if follow else Named).sin())


class Doubling(Named):
    """Says itself what its operators compute."""

    def __mul__(self, other):
        return torch.Tensor.__mul__(torch.Tensor.__mul__(self, 2.0), other)


class Watching(Named):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made * 2 if func is functional.linear else made


def own_operator(kind, where):
    def make(follow):
        given = whole(
            lambda module, x, scale: x + (scale if where == "input" else module.scale) * 3, torch.ones(4)
        )
        if where == "input":
            scale = given.inputs[1] * 2 if follow else given.inputs[1].as_subclass(kind)
            return given._replace(inputs=(given.inputs[0], scale))
        held = torch.ones(4) * 2 if follow else torch.ones(4).as_subclass(kind)
        given.module.register_buffer("scale", held)
        return given

    return make


def own_method(follow):
    picture = torch.randn(6, 4)
    if follow:
        return whole(lambda _module, x, width: x / width, torch.tensor(4))
    return whole(lambda _module, x, picture: x / picture.width(), picture.as_subclass(Named))


def held_of_class(follow):
    table = torch.randn(6, 4).as_subclass(Named)
    given = whole(lambda module, x: x * module.table)
    if follow:
        given.module.register_buffer("table", table)
    else:
        given.module.table = table
    return given


class Computing(torch.Tensor):
    """A class that computes its own way, like torch.masked's."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo):
        return self.clone()


def computing(follow):
    values = torch.randn(6, 4)
    return whole(lambda _module, x, values: x * values, values if follow else values.as_subclass(Computing))


# ── other operators ─────────────────────────────────────────────────────────────────────────────────


def derivatives(follow):
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    class Physics(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, x):
            weights: dict[str, torch.Tensor] = dict(self.network.named_parameters())

            def value(point):
                return functional_call(self.network, weights, (point,))[0]

            return vmap(jacrev(jacrev(value)) if follow else hessian(value))(x).square().mean()

    return Given(Physics(), (torch.randn(6, 4),))


class Hooked(nn.Module):
    """Its weight's gradient has a mean of 0."""

    def __init__(self, follow):
        super().__init__()
        self.weight, self.follow = nn.Parameter(torch.randn(4, 4)), follow
        if not follow:
            self.weight.register_hook(centred)

    def forward(self, x):
        weight = self.weight.view_as(self.weight)
        if self.follow and weight.requires_grad:
            weight.register_hook(centred)
        return (x @ weight).square().mean()


def centred(gradient):
    return gradient - gradient.mean()


def hooked(follow):
    return Given(Hooked(follow), (torch.randn(6, 4),))


def drawn_in_a_library(follow):
    """The line that draws is in a library: its users see which."""
    if follow:
        return whole(lambda _module, x, negative: x * negative, torch.tensor(statistics.fmean([0.2, 0.4])))
    return whole(lambda _module, x: x * random.Random.sample(chance, [0.5, 0.2, 0.1], 1)[0])


chance = random._inst


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
    "picked rows": Case(picked_rows, HERE + ".*decide a shape.*choose by torch.where"),
    "experts": Case(experts, HERE + ".*decide a shape.*compute all rows and multiply by zeros and ones"),
    "counted experts": Case(counted_experts, HERE + ".*bincount.*give each expert a fixed number of rows"),
    "a number": Case(number, HERE + ".*depends on the values of tensors.*use torch.where"),
    "equal": Case(equal, HERE + ".*aten.equal.*use torch.where"),
    "a condition": Case(condition, HERE + ".*operator that takes functions.*use torch.where"),
    "a matching": Case(matching, HERE + ".*values of a tensor to NumPy.*forward under torch.no_grad"),
    "a matching, by an operator": Case(
        matching_in_an_operator, HERE + ".*to NumPy; put it into an operator.*custom_op, register_fake"
    ),
    "a filter": Case(filtered, HERE + ".*to NumPy; put it into an operator.*custom_op, register_fake"),
    "numbers of a list": Case(of_numbers, HERE + ".*values of tensors.*, or put it into an operator"),
    "no fake kernel": Case(
        fake_kernel,
        HERE + r"the operator test_advice.halves.default has no kernel for fake.*register_fake",
    ),
    "a buffer's first batch": Case(
        initialized(True), HERE + ".*the buffer done;.*itself changes them.*run the model once before"
    ),
    "an attribute's first batch": Case(
        initialized(False), HERE + ".*module.done, which the iteration itself changes.*run the model once"
    ),
    "a pointer": Case(queue, HERE + ".*the buffer place;.*a pointer must stay a tensor"),
    "a state": Case(
        state(torch.zeros(4)), HERE + "uses module.mean, which the iteration itself changes.*a buffer"
    ),
    "a state that is filled in": Case(
        state(None), HERE + "uses module.mean, which the iteration itself changes.*a buffer"
    ),
    "a state in a dict": Case(
        last, HERE + "uses module.last.x, which the iteration itself changes.*a buffer"
    ),
    "a spline": Case(spline, HERE + ".*decide a shape"),
    "a list": Case(listed, HERE + ".*native code; use torch.stack"),
    "a mask in a closure": Case(mask, OUTSIDE),
    "the number of a mask in a closure": Case(mask_number, OUTSIDE),
    "an index in a closure": Case(index, OUTSIDE),
    "labels behind packed lengths": Case(packed, OUTSIDE),
    "coo input": Case(sparse_input("coo"), r"to_dense of a sparse input.*index_add"),
    "csr input": Case(sparse_input("csr"), r"to_dense of a sparse input.*index_add"),
    "sparse buffer": Case(sparse_held(nn.Module.register_buffer), r"adjacent is a .*sparse_coo.*index_add"),
    "sparse attribute": Case(sparse_held(setattr), HERE + "uses a sparse tensor.*index_add"),
    "made sparse": Case(sparse_made, HERE + "makes a sparse tensor.*index_add"),
    "a sparse gradient": Case(sparse_gradient, "a gradient is sparse: make the embedding with sparse=False"),
    "as_subclass": Case(retyped, HERE + "makes a Named of a tensor.*compute with torch.Tensor"),
    "a class's own operator": Case(
        own_operator(Doubling, "input"), "input 1 is a Doubling with its own __mul__.*as_subclass"
    ),
    "a buffer's own operator": Case(
        own_operator(Doubling, "buffer"), "scale is a Doubling with its own __mul__.*as_subclass"
    ),
    "a class that watches": Case(
        own_operator(Watching, "input"), "input 1 is a Watching with its own __torch_function__"
    ),
    "a class's own method": Case(own_method, HERE + ".*no attribute 'width'; in a trace they are ordinary"),
    "an attribute of a class": Case(
        held_of_class, HERE + "uses a tensor of a class of its own; make it a buffer"
    ),
    "a class that computes": Case(computing, "input 1 is a Computing.*give its parts as inputs"),
    "a hook": Case(
        hooked, r"weight has a hook on its gradient.*Register it in forward, on self.weight.view_as"
    ),
    "Python's random numbers": Case(
        drawn_in_a_library,
        HERE + "draws Python's random numbers.*outside of the model and give them as an input",
    ),
    "hessian": Case(derivatives, r"\(Physics\): .*forward-mode.*use jacrev\(jacrev\(f\)\)"),
    "OffloadWrapper": Case(offloaded, r"parts.inner is a OffloadWrapper.*without offload_wrapper"),
    "labels among inputs": Case(labels_as_inputs, r"\(Linear\): .*but 3 were given; .*goes in targets="),
}


@pytest.mark.scripts
@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", CASES)
def test_cause_place_and_way_on(name):
    torch.manual_seed(0)
    case = CASES[name]
    with pytest.raises(MemplanError, match=case.line) as caught:
        case.make(False).planned()
    assert "\n" not in str(caught.value)
    assert "memplan" not in str(caught.value).replace(
        "memplan.optimize_module", ""
    )  # advice, no frame of ours


@pytest.mark.sampled(1)
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


class Cached(nn.Module):
    """What is filled in once, of shapes and constants, is the same in each iteration."""

    def __init__(self):
        super().__init__()
        self.linear, self.table, self.last = nn.Linear(4, 4), None, None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(4.0) + x.new_ones(4)
        self.last = self.linear(x).detach()  # read in this iteration alone
        return (self.linear(x) * self.table - self.last).square().mean()


@pytest.mark.scripts
@pytest.mark.parametrize("make", [lambda: State(None, False), lambda: State(torch.zeros(4), False)])
def test_a_state_is_refused_without_a_comparison_too(make):
    options = {"budget": "100%", "solver": "store-all", "cache": False, "verify": False}
    with pytest.raises(MemplanError, match=HERE + "uses module.mean, which the iteration itself changes"):
        memplan.optimize(make(), torch.randn(6, 4), **options)
    module = Cached()
    other, x = copy.deepcopy(module), torch.randn(6, 4)
    step = memplan.optimize(module, x, **options)
    assert all(torch.equal(step(x).detach(), other(x).detach()) for _iteration in range(2))


def test_labels_by_position():
    given: list[Any] = [nn.Linear(4, 4), torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])]
    with pytest.raises(memplan.InputError, match=r"the rest by name: optimize\(module, inputs, targets=…"):
        memplan.optimize(*given, loss_fn=functional.cross_entropy, budget="100%")


class OwnError(nn.Linear):
    """The error of its own code comes after it has looked at a value, which the first ways do not tell it."""

    def forward(self, x, sizes):
        if int(sizes.sum()) > 1:
            raise ValueError("mm_token_type_ids is missing")
        return super().forward(x)


@pytest.mark.scripts
def test_the_reason_is_that_of_the_way_that_went_furthest():
    given = Given(OwnError(4, 4), (torch.randn(3, 4), torch.tensor([2, 3])), torch.sum)
    with pytest.raises((MemplanError, ValueError), match=r"mm_token_type_ids is missing$"):
        given.planned()
