"""Values that a model's code reads change after it was traced: refused or followed, never silently old.

The oracle is eager PyTorch with the value as it is now.
"""

from __future__ import annotations

import collections
import contextvars
import ctypes
import functools
import gc
import itertools
import logging
import math
import os
import random
import secrets
import socket
import sqlite3
import subprocess
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import memplan
import numpy as np
import pytest
import torch
from kinds_of_values import KINDS, THREAD, VARIABLE, Data, Slotted
from memplan.guards.reads.recorder import Recording
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from rarer_kinds_of_values import RARER
from torch import Tensor, nn
from transfers import unmeasured

X = torch.randn(4, 3)
FILE = Path(__file__)
RANDOM, GENERATOR, STATE = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)
COUNT, step = 0, 0
log = logging.getLogger(__name__)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Model(nn.Module):
    """A layer's output times what is read."""

    alpha: float
    held: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.read: Callable[[Any], Any] = lambda _self: 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * self.read(self)).square().mean()


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def traced(module: nn.Module) -> PlannedStep:
    iteration = Iteration(module, (X,))
    program = trace(iteration)
    return PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))


def codes() -> list[CodeType]:
    functions = (thing for kind in (Model, Data, Slotted) for thing in vars(kind).values())
    return [each.__code__ for each in functions if isinstance(each, FunctionType)]


CANNOT = {"an_iterator"}
"""Kinds that are refused when they are traced."""


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", [name for name in KINDS if name not in CANNOT])
def test_a_value_that_changes_is_noticed(name: str) -> None:
    module, before = model(), codes()
    module.read, change = KINDS[name](module)
    planned = traced(module)
    assert all(one is other for one, other in zip(codes(), before, strict=True))
    for _turn in range(2):
        assert torch.equal(planned(X).detach(), module(X))
    change()
    with pytest.raises(memplan.MismatchError, match="the plan is for") as refused:
        planned(X)
    assert "\n" not in str(refused.value)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", RARER)
def test_a_rarer_value_that_changes_is_noticed(name: str) -> None:
    module = model()
    module.read, change = RARER[name](module)
    planned = traced(module)
    try:
        for _turn in range(2):
            assert torch.equal(planned(X).detach(), module(X))
        change()
        with pytest.raises(
            memplan.MismatchError, match=r"the plan (is for|was made)|changed after"
        ) as refused:
            planned(X)
        assert "\n" not in str(refused.value)
    finally:
        getattr(module, "undo", lambda: None)()


def test_a_weight_in_the_place_of_one_that_plain_sgd_updates() -> None:
    """It has no states by which the step would know its weights."""
    module = model()
    options: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = memplan.optimize(module, X, optimizer=optimizer, **options)
    step(X)
    module.layer.bias = nn.Parameter(torch.zeros(3))
    with pytest.raises(
        memplan.MismatchError, match=r"layer\.bias was replaced; the optimizer has the one before"
    ):
        step(X)


@pytest.mark.parametrize("name", sorted(CANNOT))
def test_a_value_that_no_trace_can_take(name: str) -> None:
    module = model()
    module.read, _change = KINDS[name](module)
    with pytest.raises(memplan.MemplanError):
        traced(module)


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["attribute", "a_set", "a_tensor_replaced", "an_object_replaced", "item"])
def test_another_plan_follows(name: str) -> None:
    module = model()
    module.read, change = KINDS[name](module)
    planned = memplan.optimize(module, X, budget="100%", solver="store-all", verify=False, cache=False)
    planned(X)
    change()
    for _turn in range(2):
        assert torch.equal(planned(X).detach(), module(X))
    assert len(planned.plans) == 2


@pytest.mark.scripts
def test_a_plan_for_each_value_up_to_the_limit() -> None:
    module = model()
    module.read = lambda self: self.alpha
    losses: dict[float, Tensor] = {}
    for module.alpha in (0.1, 0.2):
        losses[module.alpha] = module(X).detach()
    module.alpha = 0.1
    planned = memplan.optimize(
        module, X, budget="100%", solver="store-all", verify=False, cache=False, max_plans=2
    )
    for module.alpha in (0.1, 0.2, 0.1, 0.2):
        assert torch.equal(planned(X).detach(), losses[module.alpha])
    module.alpha = 0.3
    with pytest.warns(UserWarning, match="the plan used least recently goes"):
        loss = planned(X).detach()
    assert torch.equal(loss, module(X).detach())
    assert len(planned.plans) == 2


# ── switches of PyTorch ─────────────────────────────────────────────────────────────────────────────


def _matmuls() -> Any:
    return torch.backends.cuda.matmul


SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any, Any]] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float32, torch.float64),
    "device": (torch.get_default_device, torch.set_default_device, None, "meta"),
    "warn_only": (
        torch.is_deterministic_algorithms_warn_only_enabled,
        lambda warns: torch.use_deterministic_algorithms(False, warn_only=warns),
        *(False, True),
    ),
    "deterministic": (
        *(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, False, True),
    ),
    "precision": (
        *(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest", "medium"),
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads, 1, 2),
    "cudnn": (
        lambda: torch.backends.cudnn.deterministic,
        lambda on: setattr(torch.backends.cudnn, "deterministic", on),
        *(False, True),
    ),
    "tf32": (lambda: _matmuls().allow_tf32, lambda on: setattr(_matmuls(), "allow_tf32", on), False, True),
    "attention": (*(torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, True, False),),
    "autocast": (lambda: torch.is_autocast_cache_enabled(), torch.set_autocast_cache_enabled, True, False),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_that_code_reads(name: str) -> None:
    tell, switch, first, then = SWITCHES[name]
    module = model()
    switch(first)
    before = tell()
    module.read = lambda self: 1.0 if tell() == before else 3.0
    planned = traced(module)
    try:
        for _turn in range(2):
            assert torch.equal(planned(X).detach(), module(X))
        switch(then)
        with pytest.raises(memplan.MismatchError, match="the plan is for"):
            planned(X)
    finally:
        switch(first)
    assert torch.equal(planned(X).detach(), module(X))


@pytest.mark.scripts
def test_a_default_dtype_that_nothing_reads() -> None:
    """`torch.ones(3)` in forward depends on it: another plan follows."""
    module = model()
    module.read = lambda self: (torch.ones(3) / 3).to(torch.float64)
    planned = memplan.optimize(module, X, budget="100%", solver="store-all", verify=False, cache=False)
    losses = []
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            losses.append(planned(X).detach())
            assert torch.equal(losses[-1], module(X))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(planned.plans) == 2
    assert not torch.equal(losses[0], losses[1])


# ── what changes without influence ──────────────────────────────────────────────────────────────────

Kind = Callable[[Any], tuple[Callable[[Any], Any], Callable[[int], Any]]]
HARMLESS: dict[str, Kind] = {}


def harmless(make: Kind) -> Kind:
    HARMLESS[make.__name__] = make
    return make


def nothing(_turn: int) -> None: ...


@harmless
def a_loop_variable_with_the_name_of_an_attribute(m):
    m.register_buffer("step", torch.ones(1))

    def change(turn):
        global step
        step = turn

    return (lambda self: self.step), change


@harmless
def a_counter(m):
    m.n, m.stats = 0, {"n": 0}

    def read(self):
        global COUNT
        self.n += 1
        self.stats["n"] += 1
        self.calls = getattr(self, "calls", 0) + 1
        COUNT = COUNT + 1
        return 1.0

    return read, lambda turn: m(X)


@harmless
def a_cache(m):
    m.mask, m.table, m.size = None, {}, None

    def read(self):
        if self.mask is None:
            self.mask = torch.ones(3)
        if self.size is None:
            self.size = 3
        if 3 not in self.table:
            self.table[3] = torch.ones(self.size)
        return self.mask * self.table[3]

    return read, lambda turn: m(X)


@harmless
def features_of_an_iteration(m):
    m.features, m.losses = [], collections.deque(maxlen=3)

    def read(self):
        self.features.clear()
        self.features.append(self.layer.bias)
        self.losses.append(1.0)
        self.last = self.layer.bias * 2
        return sum(self.features) + self.last

    return read, nothing


@harmless
def what_only_the_loop_reads(m):
    m.factor, m.stats, m.options = 1.0, {"factor": 1.0}, Namespace(factor=1.0)

    def change(turn):
        m.epoch, m.options.step = turn, turn
        m.stats["step"] = turn

    return (lambda self: self.factor * self.stats["factor"] * self.options.factor), change


@harmless
def equal_ones_in_their_place(m):
    def change(_turn):
        m.numbers, m.data, m.function = [1.0], Data(), lambda: 1.0

    change(0)
    return (lambda self: self.numbers[0] * self.data.factor * self.function()), change


@harmless
def what_is_only_logged(m):
    m.turn = 0

    def read(self):
        log.debug("turn %s", self.turn)
        return 1.0

    return read, lambda turn: setattr(m, "turn", turn)


@harmless
def other_entries(m):
    m.numbers, m.names = [1.0, 0], {"a"}

    def change(turn):
        m.numbers[1] = turn
        m.names.add(turn)

    return (lambda self: self.numbers[0] if "a" in self.names and self.numbers else 0.0), change


@harmless
def seeded_in_the_iteration(m):
    def read(self):
        return float(np.random.default_rng(0).normal()) + random.Random(0).random()

    return read, lambda turn: (random.random(), np.random.rand())


@harmless
def a_cached_property(m):
    class Local:
        @functools.cached_property
        def factor(self):
            return 2.0

    m.held = Local()
    return (lambda self: self.held.factor), nothing


@harmless
def objects_that_are_counted(m):
    class Counted:
        made = 0

        def __init__(self):
            type(self).made += 1
            self.factor = 1.0

    return (lambda self: Counted().factor), lambda turn: Counted()


@harmless
def switches_that_the_iteration_sets(m):
    m.lock = threading.Lock()

    def read(self):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), self.lock:
            states = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), self.lock.locked())
        return 2.0 if states == (False, True, True) and torch.is_grad_enabled() else 1.0

    return read, nothing


@harmless
def switches_that_nothing_reads(m):
    def change(turn):
        torch.set_printoptions(precision=turn)
        torch.backends.cudnn.benchmark = turn % 2 == 1

    return (lambda self: 1.0 if torch.compiler.is_compiling() else 2.0), change


@harmless
def numbers_of_a_library(m):
    return (lambda self: math.pi * torch.pi * np.e), nothing


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_without_influence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # as it was, afterwards
    module = model()
    module.read, change = HARMLESS[name](module)
    planned = traced(module)
    for turn in range(1, 4):
        change(turn)
        assert torch.equal(planned(X).detach(), module(X))


# ── what an iteration counts and uses ───────────────────────────────────────────────────────────────

COUNTS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {}


def counts(make: Any) -> Any:
    COUNTS[make.__name__] = make
    return make


@counts
def in_an_attribute(m):
    m.n = 0

    def read(self):
        self.n += 1
        return 1.0 if self.n > 1000 else 2.0

    return read


@counts
def in_a_ramp(m):
    m.n = 0

    def read(self):
        beta = min(1.0, self.n / 1000)
        self.n += 1
        return beta

    return read


@counts
def in_a_global(m):
    def read(self):
        global COUNT
        COUNT += 1
        return 1.0 if COUNT > 12 else 2.0

    return read


@counts
def in_a_closure(m):
    n = 0

    def read(self):
        nonlocal n
        n += 1
        return 1.0 if n > 12 else 2.0

    return read


@counts
def in_a_list(m):
    m.n = [0]

    def read(self):
        self.n[0] += 1
        return 1.0 if self.n[0] > 12 else 2.0

    return read


@counts
def in_a_default(m):
    def read(self, n=[0]):  # noqa: B006
        n[0] += 1
        return 1.0 if n[0] > 12 else 2.0

    return read


@counts
def in_a_slot(m):
    m.held = Slotted()

    def read(self):
        self.held.factor += 1
        return 1.0 if self.held.factor > 12 else 2.0

    return read


@counts
def in_a_thread(m):
    def read(self):
        THREAD.factor += 1
        return 1.0 if THREAD.factor > 12 else 2.0

    return read


@counts
def in_a_context(m):
    def read(self):
        VARIABLE.set(VARIABLE.get() + 1)
        return 1.0 if VARIABLE.get() > 12 else 2.0

    return read


@counts
def by_a_list_s_length(m):
    m.losses = []

    def read(self):
        self.losses.append(1.0)
        return 1.0 if len(self.losses) > 12 else 2.0

    return read


@counts
def in_a_hook(m):
    m.n = 0

    def hook(_module, _given, output):
        m.n += 1
        return output * 2 if m.n > 12 else output

    m.layer.register_forward_hook(hook)
    return lambda self: 1.0


@counts
def in_a_function(m):
    def read(self):
        read.n = getattr(read, "n", 0) + 1
        return 1.0 if read.n > 12 else 2.0

    return read


@counts
def in_defaults(m):
    def inner(n=0):
        inner.__defaults__ = (n + 1,)
        return n

    return lambda self: 1.0 if inner() > 12 else 2.0


@counts
def by_a_first_iteration(m):
    m.ready = False

    def read(self):
        if not self.ready:
            self.ready = True
            return 3.0
        return 1.0

    return read


@pytest.mark.scripts
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COUNTS)
def test_what_an_iteration_counts_and_uses_is_refused(name: str) -> None:
    module = model()
    module.read = COUNTS[name](module)
    with pytest.raises(memplan.MemplanError, match="which the iteration itself changes") as refused:
        traced(module)
    assert "\n" not in str(refused.value)


@pytest.mark.scripts
def test_a_count_in_a_buffer_is_followed() -> None:
    """The way out that the refusal names."""
    module = model()
    module.register_buffer("n", torch.tensor(0))

    def read(self: Any) -> float:
        self.n += 1
        return 1.0 if self.n > 3 else 2.0

    module.read = read
    eager = model()
    eager.register_buffer("n", torch.tensor(0))
    eager.read = read
    planned = memplan.optimize(module, X, budget="100%", solver="store-all", verify=False, cache=False)
    for _turn in range(6):
        assert torch.equal(planned(X).detach(), eager(X))
    assert len(planned.plans) == 2


# ── chance, clocks, files ───────────────────────────────────────────────────────────────────────────

DRAWS: dict[str, Callable[[Any], Any]] = {
    "random": lambda _self: random.random(),
    "uniform": lambda _self: random.uniform(0, 1),
    "choice": lambda _self: random.choice([1.0, 2.0]),
    "a random.Random": lambda _self: RANDOM.random(),
    "an unseeded random.Random": lambda _self: random.Random().random(),
    "numpy": lambda _self: float(np.random.rand()),
    "a permutation": lambda _self: float(np.random.permutation(3)[0]),
    "a numpy generator": lambda _self: float(GENERATOR.normal()),
    "a numpy state": lambda _self: float(STATE.randn()),
    "an unseeded numpy generator": lambda _self: float(np.random.default_rng().random()),
    "the system": lambda _self: random.SystemRandom().random(),
    "secrets": lambda _self: float(secrets.randbelow(3)),
    "uuid": lambda _self: float(uuid.uuid4().int % 3),
    "urandom": lambda _self: float(os.urandom(1)[0]),
    "a layer dropped": lambda self: 1.0 if random.random() < 1e-9 else self.layer.bias,
}
CLOCKS: dict[str, Callable[[Any], Any]] = {
    "time": lambda _self: time.time(),
    "perf_counter": lambda _self: time.perf_counter(),
    "now": lambda _self: float(datetime.now().second),
    "open": lambda _self: float(len(open(FILE).read())),  # noqa: SIM115
    "read_text": lambda _self: float(len(FILE.read_text())),
    "numpy's": lambda _self: float(len(np.fromregex(FILE, r"(\d)", [("digit", "S1")]))),
    "exists": lambda _self: float(FILE.exists()),
    "isfile": lambda _self: float(os.path.isfile(__file__)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_that_are_not_pytorchs_are_refused(name: str) -> None:
    module = model()
    module.read = DRAWS[name]
    with pytest.raises(memplan.MemplanError, match=r"test_reads\.py:\d+: draws .*torch\.rand"):
        traced(module)


def test_random_numbers_in_a_library_are_refused() -> None:
    """Seen by the generator's state alone."""
    module = model()
    exec("import random\ndef read(self):\n    return random.random()\n", names := {})
    module.read = names["read"]
    with pytest.raises(memplan.MemplanError, match=r"\.py:\d+: draws Python's random numbers"):
        traced(module)


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks_and_files_are_refused(name: str) -> None:
    module = model()
    module.read = CLOCKS[name]
    with pytest.raises(memplan.MemplanError, match=r"test_reads\.py:\d+: (reads|looks at)"):
        traced(module)


LIBC = ctypes.CDLL(None)
DATABASE = sqlite3.connect(":memory:")
CONTEXT = contextvars.copy_context()
OUTSIDE: dict[str, Callable[[Any], float]] = {
    "a process": lambda self: float(subprocess.check_output(["echo", "1"])),
    "a shell": lambda self: 1.0 + os.system("true"),
    "a pipe": lambda self: float(os.popen("echo 1").read()),
    "the network": lambda self: 1.0 + 0 * len(socket.gethostname()),
    "native code": lambda self: 1.0 + 0 * LIBC.getpid(),
    "a database": lambda self: float(DATABASE.execute("select 1").fetchone()[0]),
    "a context": lambda self: CONTEXT.run(float, "1"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_no_one_can_watch_is_said_once(name: str) -> None:
    module = model()
    module.read = OUTSIDE[name]
    with pytest.warns(UserWarning, match=r"test_reads\.py:\d+: .*, can't be watched") as said:
        traced(module)
    assert len({str(each.message) for each in said}) == len(said)


def test_a_descriptor_of_a_file_that_is_read() -> None:
    module = model()
    module.read = lambda self: 1.0 + 0 * os.open(FILE, os.O_RDONLY)
    with pytest.raises(memplan.MemplanError, match=r"reads the file test_reads\.py"):
        traced(module)


def counting_hook(self: Any, gradient: Tensor) -> Tensor:
    self.alpha += 1
    return gradient * 2 if self.alpha > 12 else gradient


def test_a_counter_of_a_gradient_hook() -> None:
    """Backward is the plan's: no code of the user's runs in it, so the counter would stay."""
    module = model()
    module.alpha = 0

    def read(self: Any) -> Tensor:
        factor = self.layer.bias.sum() * 0 + 1
        factor.register_hook(functools.partial(counting_hook, self))
        return factor

    module.read = read
    with pytest.raises(memplan.MemplanError, match=r"uses module\.alpha, which the iteration itself changes"):
        traced(module)


def only_counting_hook(self: Any, _gradient: Tensor) -> None:
    self.alpha += 1


@pytest.mark.scripts
def test_what_a_gradient_hook_only_changes_is_said() -> None:
    module = model()
    module.alpha = 0

    def read(self: Any) -> Tensor:
        factor = self.layer.bias.sum() * 0 + 1
        factor.register_hook(functools.partial(only_counting_hook, self))
        return factor

    module.read = read
    with pytest.warns(UserWarning, match=r"changes module\.alpha in backward.*it stays as it is"):
        traced(module)


OPERATORS = [torch.ops.aten.mm.default, torch.ops.aten.addmm]


@pytest.mark.parametrize("how", [str, list, functools.partial(functools.partial, print)])
def test_operators_that_fill_their_attributes_in_the_trace(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the list of what selective checkpointing saves."""
    for name in ("_namespace", "_lazy"):
        monkeypatch.setattr(OPERATORS[0], name, None, raising=False)
    module = model()
    module.held = OPERATORS

    def read(self: Any) -> float:
        how(OPERATORS)
        how(self.held)
        return 1.0 if OPERATORS[0].namespace == "aten" else 2.0

    module.read = read
    assert torch.equal(traced(module)(X).detach(), module(X))


def test_loggers_note_what_they_were_asked() -> None:
    """A logger keeps its answers; its level is what counts."""
    module, log = model(), logging.getLogger("memplan.tests.asked")
    module.held = [log]
    module.read = lambda self: 2.0 if self.held[0].isEnabledFor(logging.INFO) else 1.0
    log.manager._clear_cache()  # pyright: ignore[reportAttributeAccessIssue]
    log.setLevel(logging.INFO)
    step = traced(module)
    assert torch.equal(step(X).detach(), module(X))
    log.setLevel(logging.ERROR)
    with pytest.raises(memplan.MismatchError, match=r"module\.held"):
        step(X)
    log.setLevel(logging.INFO)
    logging.disable(logging.INFO)
    try:
        with pytest.raises(memplan.MismatchError, match=r"module\.held"):
            step(X)
    finally:
        logging.disable(logging.NOTSET)


def test_iterators_that_the_iteration_makes() -> None:
    module = model()
    module.held = [1.0, 2.0]
    module.read = lambda self: next(itertools.islice(self.held, 1, 2))
    assert torch.equal(traced(module)(X).detach(), module(X))


@pytest.mark.scripts
def test_a_trace_that_fails_lets_go_of_what_was_there():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).square().mean() * random.random()

    with pytest.raises(memplan.MemplanError) as refused:
        memplan.optimize(Draws(), X, budget="100%", cache=False, time_limit=1)
    recordings = [each for each in gc.get_objects() if type(each) is Recording]
    assert refused.value is not None
    assert all(not vars(vars(each)["_youngest"])["_old"] for each in recordings)
    assert all(not vars(each)["_nodes"] for each in recordings)


HELD: Any = None


@pytest.mark.scripts
@pytest.mark.parametrize("place", ["closure", "global"])
def test_a_loss_that_holds_the_batch_means_each_batch(place):
    """A training loop gives its variable another batch each time; one that stays behind is eager's."""
    global HELD
    module = nn.Linear(3, 3)
    x = HELD = torch.randn(4, 3)

    def loss_fn(output):
        return nn.functional.mse_loss(output, x if place == "closure" else HELD)

    step = memplan.optimize(module, x, loss_fn=loss_fn, budget="100%", cache=False, time_limit=1)
    for _ in range(2):
        x = HELD = torch.randn(4, 3)
        assert step(x).item() == loss_fn(module(x)).item()
    other = torch.randn(4, 3)
    with pytest.warns(
        UserWarning, match=r"uses a tensor from outside.*give labels, masks and indices as target"
    ):
        assert step(other).item() == loss_fn(module(other)).item()
