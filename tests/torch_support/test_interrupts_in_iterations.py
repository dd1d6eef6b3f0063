"""Exceptions by signals at any moment of an iteration: the state is that before it or after it, or refused.

The oracle is a loop of eager PyTorch that makes the same iteration, or does not.
"""

from __future__ import annotations

import contextlib
import copy
import random
import signal
import sys
import threading

import memplan
import pytest
import torch
import unplanned
from memplan.graphs.machine import Links, Machine
from memplan.torch_support.interrupts import deferred_signals, open_to_signals
from not_none import not_none
from torch import nn

ROOMS = (
    "devices",
    "guards",
    "model",
    "program",
    "runtime",
    "steps",
    "torch_support",
    "tracing",
    "training",
    "updates",
)

X = [torch.randn(16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
MACHINE = Machine(host_capacity=2**24, links=Links(d2h=1e9, h2d=1e9))


class TimedOutError(Exception):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.square().mean()


def state_of(module, optimizer):
    found = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    for number, parameter in enumerate(module.parameters()):
        for name, value in optimizer.state.get(parameter, {}).items():
            if name not in ("master", "ema", "sum"):
                found[f"{number}.{name}"] = value.detach().clone()
    return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class RaisingAt:
    """Raises a signal at the nth line that memplan's own code runs, counted while it is active."""

    def __init__(self, places, number):
        self.places, self.number, self.lines = places, number, 0

    def __enter__(self):
        sys.settrace(self.called)

    def __exit__(self, *_):
        sys.settrace(None)

    def called(self, frame, _event, _argument):
        name = frame.f_code.co_filename
        own = any(f"/memplan/{room}/" in name for room in ROOMS) or name.startswith("<")
        return self.line if own and "/tests/" not in name and not name.endswith("interrupts.py") else None

    def line(self, _frame, event, _argument):
        if event == "line":
            self.lines += 1
            if self.lines in self.places:
                signal.raise_signal(self.number)
        return self.line


@pytest.fixture(autouse=True)
def handlers():
    def timeout(*_):
        raise TimedOutError

    before = {each: signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGINT)}
    signal.signal(signal.SIGUSR1, timeout)
    yield
    assert signal.getsignal(signal.SIGUSR1) is timeout
    assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
    for number, handler in before.items():
        signal.signal(number, handler)


WAYS = {
    "planned": {},
    "rollback_on_error": {"rollback_on_error": True},
    "after": {"update": "after", "max_grad_norm": 0.1},
    "offloaded": {"machine": MACHINE, "budget": "85%"},
    "average": {"ema": 0.9},
    "outside": {},
}


def planned(way):
    torch.manual_seed(0)
    module = Net()
    kind = unplanned.Adagrad if way == "outside" else torch.optim.AdamW
    optimizer = kind(module.parameters(), lr=0.01, foreach=False)
    options = {"budget": "100%", "cache": False, "time_limit": 1, "verify": False, **WAYS[way]}
    return module, optimizer, memplan.optimize(module, X[0], optimizer=optimizer, **options)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT], ids=["timeout", "ctrl-c"])
@pytest.mark.parametrize("way", WAYS)
def test_the_state_is_never_in_between(way, number):
    module, optimizer, step = planned(way)
    clip = WAYS[way].get("max_grad_norm")
    counter = RaisingAt((), number)
    with counter:
        step(X[0])
    step.restore_to_device()
    eager = copy.deepcopy(module)
    other = type(optimizer)(eager.parameters(), lr=0.01, foreach=False)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    rng, seen, refused = random.Random(way), set(), []
    for _try in range(12):
        x = rng.choice(X)
        before, kept = state_of(eager, other), copy.deepcopy((eager.state_dict(), other.state_dict()))
        eager(x).backward()
        if clip:
            nn.utils.clip_grad_norm_(eager.parameters(), clip)
        other.step()
        other.zero_grad()
        after = state_of(eager, other)
        place = rng.randrange(1, counter.lines)
        places = (place,) if rng.random() < 0.5 else (place, place + rng.randrange(1, 30))
        raised = None
        try:
            with RaisingAt(places, number):
                step(x)
        except (TimedOutError, KeyboardInterrupt) as error:
            raised = error
        try:
            step.restore_to_device()
            now = state_of(module, optimizer)
        except memplan.MemplanError as error:
            refused.append(str(error))
            module.load_state_dict(eager.state_dict())
            optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
            continue
        if same(now, after):
            seen.add("after")
        else:
            assert raised is not None
            assert same(now, before), [name for name in now if not torch.equal(now[name], before[name])]
            seen.add("before")
            eager.load_state_dict(kept[0])
            other.load_state_dict(kept[1])
    assert "after" in seen
    assert all("load the weights" in line for line in refused)
    assert way not in ("rollback_on_error", "outside") or not refused


def test_what_fails_at_the_very_end_is_undone(monkeypatch):
    """All weights are updated, but the iteration's result can't be had."""
    module, optimizer, step = planned("rollback_on_error")
    step(X[0])
    before = state_of(module, optimizer)
    plan = step.plans[0]
    monkeypatch.setattr(plan, "_outcome", lambda results: 1 / 0)
    with pytest.raises(ZeroDivisionError) as failed:
        step(X[1])
    assert "it can be repeated" in failed.value.__notes__[0]
    assert same(state_of(module, optimizer), before)
    monkeypatch.undo()
    end = not_none(plan._optimizer).end

    def half(**keywords):
        end(**keywords)
        raise TimedOutError

    monkeypatch.setattr(plan._optimizer, "end", half)
    with pytest.raises(TimedOutError):
        step(X[1])
    assert same(state_of(module, optimizer), before)


def test_handlers_run_where_they_may():
    came = []
    signal.signal(signal.SIGUSR2, lambda *_, **_named: came.append(len(came)))
    with deferred_signals():
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR2)
        assert came == []
        with open_to_signals():
            signal.raise_signal(signal.SIGUSR2)
            assert came == [0]
            with deferred_signals():
                signal.raise_signal(signal.SIGUSR2)
                assert came == [0]
            assert came == [0, 1]
    assert came == [0, 1]
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_the_second_ctrl_c_acts_at_once_and_a_third_waits():
    done = []

    def work():
        with deferred_signals(), open_to_signals():
            signal.raise_signal(signal.SIGINT)
            done.append("first")
            try:
                signal.raise_signal(signal.SIGINT)
                done.append("never")
            finally:
                signal.raise_signal(signal.SIGINT)
                done.append("put in order")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["first", "put in order"]


def test_a_closed_block_within_an_open_one_lets_go_of_what_came():
    done = []

    def work():
        with deferred_signals(), open_to_signals(first_interrupt=True):
            with deferred_signals():
                signal.raise_signal(signal.SIGINT)
                done.append("inside")
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inside"]


def test_handlers_are_put_back_though_one_raises_meanwhile(monkeypatch):
    """The handler of a signal that was put back raises while the next one's turn has not come."""

    def raises(_number, _frame):
        raise TimeoutError

    put, before = signal.signal, signal.signal(signal.SIGUSR1, raises)
    other = signal.signal(signal.SIGUSR2, lambda *_, **_named: None)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)]

    def interrupted(number, handler):
        if number == signal.SIGUSR2 and handler is handlers[2] and signal.getsignal(signal.SIGUSR1) is raises:
            monkeypatch.setattr(signal, "signal", put)
            signal.raise_signal(signal.SIGUSR1)
        return put(number, handler)

    try:
        with pytest.raises(TimeoutError), deferred_signals():
            monkeypatch.setattr(signal, "signal", interrupted)
        there = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)]
        assert there == handlers
    finally:
        put(signal.SIGUSR1, before)
        put(signal.SIGUSR2, other)


def test_threads_that_call_one_step_take_turns():
    module, optimizer, step = planned("planned")
    other = copy.deepcopy(module)
    eager = torch.optim.AdamW(other.parameters(), lr=0.01, foreach=False)
    errors = []

    def train():
        try:
            for _ in range(10):
                step(X[0])
                step.evaluate(X[0])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for _ in range(40):
        other(X[0]).backward()
        eager.step()
        eager.zero_grad()
    assert same(state_of(module, optimizer), state_of(other, eager))


@pytest.fixture
def times_out():
    """Signal SIGUSR1, whose handler raises TimedOutError."""

    def raises(_number, _frame):
        raise TimedOutError

    before = signal.signal(signal.SIGUSR1, raises)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_an_exception_of_a_handler_that_is_caught_on_its_way_is_raised_at_the_end(times_out):
    done = []

    def work():
        with deferred_signals(), open_to_signals(first_interrupt=True):
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Exception:
                done.append("went on")
            try:
                signal.raise_signal(signal.SIGINT)  # at once: no exception passes now
            except KeyboardInterrupt:
                done.append("interrupted")

    with pytest.raises(TimedOutError):
        work()
    assert done == ["went on", "interrupted"]


def test_an_exception_of_a_handler_is_raised_instead_of_what_it_was_made_into(times_out):
    done = []

    def work():
        with deferred_signals(), open_to_signals(first_interrupt=True):
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Exception as error:
                try:
                    raise ValueError from error
                finally:
                    signal.raise_signal(signal.SIGINT)  # waits: what it was made into passes
                    done.append("put in order")

    with pytest.raises(TimedOutError):
        work()
    assert done == ["put in order"]


def test_a_ctrl_c_that_a_solver_takes_as_its_end_is_not_raised_again():
    with deferred_signals(), open_to_signals(first_interrupt=True), contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_ctrl_c_that_came_in_a_closed_block_that_fails_is_not_kept_till_the_end():
    def fail():
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
            raise ValueError

    with deferred_signals(), open_to_signals(first_interrupt=True), pytest.raises(KeyboardInterrupt):
        fail()


class Late(Net):
    """Its time is over while it is planned."""

    def forward(self, x):
        signal.raise_signal(signal.SIGUSR1)
        return super().forward(x)


def test_a_timeout_while_a_model_is_traced_is_no_refusal_of_the_model(times_out):
    module = Late()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(TimedOutError):
        memplan.optimize(module, X[0], budget="100%", cache=False)
    assert same(module.state_dict(), before)
    assert module.training


def test_a_timeout_while_a_new_shape_is_planned_leaves_all_as_it_was(times_out, monkeypatch):
    def late(*_):
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Exception as error:
            raise memplan.MemplanError("something else") from error

    module = Net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, foreach=False)
    step = memplan.optimize(module, X[0], budget="100%", optimizer=optimizer, cache=False, time_limit=1)
    step(X[0])
    before = state_of(module, optimizer)
    monkeypatch.setattr("memplan.training.plans.front_end.trace", late)
    with pytest.raises(TimedOutError):
        step(X[0][:8])
    monkeypatch.undo()
    assert same(state_of(module, optimizer), before)
    step(X[0][:8])


def test_the_second_ctrl_c_s_exception_tells_what_was_put_back(monkeypatch):
    """It is raised itself: the first one, which waited, is answered by it."""
    _module, _optimizer, step = planned("planned")
    plan = step.plans[0]

    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(plan, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt) as found:
        step(X[0])
    assert found.value.__notes__ == ["the iteration is as if it had not begun: it can be repeated"]
