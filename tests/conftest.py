"""Shared by all tests: where the public instances are, and a hypothesis profile that repeats itself."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import touched
from hypothesis import HealthCheck, settings
from memplan.cli.printing import heartbeat
from memplan.graphs import collector

settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    database=None,
)
settings.load_profile("suite")

# Commands in tests print no signs of life, however busy the machine is; test_heartbeat.py has its own rate.
heartbeat.EVERY_SECONDS = 1e6

# Compiled code is kept between runs of the suite: it is named by the hash of its sources.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "memplan-tests"))

# Background jobs ignore Ctrl-C, those of `nohup` SIGHUP, and every child would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


DEVICES = (("cpu", "scripts"), ("cuda", "cuda"))
"""Devices of the tests that ask for one, each with the marker of those cases."""


def pytest_collection(session: pytest.Session) -> None:
    """Leave circles alone while tests are collected: what is made then stays."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Switch the collector on again, and note when what is left out of collections is back in them."""
    gc.collect()
    unfreeze = gc.unfreeze

    def noted() -> None:
        unfreeze()
        _frozen[0] = False

    gc.unfreeze = noted
    gc.enable()
    collector.has_frozen = lambda: True  # to count them takes longer than most tests


_frozen = [False]
"""Whether a million objects of pytest and of packages are left out now: a plan in a test ends that."""


def pytest_runtest_logstart() -> None:
    """Leave what is there before a test out of collections."""
    if not _frozen[0]:
        gc.collect(1)
        gc.freeze()
        _frozen[0] = True


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of a `sampled(count)` test but `count` of them, the same in every run.

    Twice as many get `scripts`, the others `exhaustive`. HEAVY_TESTS_SEED, which CI sets, shuffles the files
    of `scripts`: if time ends before the heavy tests, other ones are left out at another commit.
    HEAVY_TESTS_TOUCHED, which CI sets too, leaves out those that no change since the last night touches.
    """
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.split("[")[0]].append(item)
    for each in cases.values():
        (count,) = each[0].get_closest_marker("sampled").args  # pyright: ignore[reportOptionalMemberAccess]
        random = Random(len(each))  # evenly spread ones would share a parameter of several
        others = random.sample(each, max(0, len(each) - count))
        for number, item in enumerate(others):
            item.add_marker(pytest.mark.scripts if number < 2 * count else pytest.mark.exhaustive)
    if seed := os.environ.get("HEAVY_TESTS_SEED"):
        items.sort(key=lambda item: _place(item, seed))
    if os.environ.get("HEAVY_TESTS_TOUCHED"):
        _leave_out_untouched(items)


def _leave_out_untouched(items: list[pytest.Item]) -> None:
    """Skip heavy tests whose imports lead to no file that has changed since the last complete run."""
    changed = touched.changed_since(touched.last_night(touched.NIGHTS.read_text()))
    files = None if changed is None else touched.touched(changed)
    for item in items:
        if files is not None and item.path not in files and item.get_closest_marker("scripts"):
            item.add_marker(pytest.mark.skip("nothing that it imports has changed since the last night"))


def _place(item: pytest.Item, seed: str) -> bytes:
    """Return where a heavy test stands; all others stand first, in their order."""
    if not item.get_closest_marker("scripts"):
        return b""
    return hashlib.sha256(f"{seed} {item.path.name}".encode()).digest()


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip heavy tests after HEAVY_TESTS_UNTIL, in seconds since 1970, which CI sets."""
    until = os.environ.get("HEAVY_TESTS_UNTIL")
    if until and time.time() > float(until) and item.get_closest_marker("scripts"):
        pytest.skip("the time for heavy tests is over: make test-scripts runs all")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the tests took of the processors, with all processes that they have started."""
    if os.name != "posix":
        return
    resource = importlib.import_module("resource")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    terminalreporter.write_line(f"{seconds:,.0f} s of processor time")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept on disk stays out of the user's cache folder; pytest's workers share it."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield


@pytest.fixture(autouse=True)
def planning_leaves_no_trace() -> None:
    """Whatever a test plans, module, optimizer, inputs and random generators are afterwards as before."""
    if "torch" in sys.modules and not _watched:
        _watched.append(True)
        no_trace = importlib.import_module("no_trace")
        no_trace.watch_planners()


_watched: list[bool] = []


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """PyTorch computes in one thread: two that wait for each other take forever where other tests run."""
    if "torch" not in sys.modules:
        yield
        return
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, mark)) for name, mark in DEVICES])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the CPU or of a CUDA device, where there is one: PyTorch repeats its results bit by bit."""
    torch = importlib.import_module("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA reads it at the first matrix product
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield request.param
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def public() -> Path:
    """The folder of public instances."""
    return Path(__file__).parents[1] / "instances" / "public"
