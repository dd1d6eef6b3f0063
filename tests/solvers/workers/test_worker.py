"""Worker processes: what comes back from a call, and what becomes of one that crashes, hangs or is left.

The functions that workers call here stand in a file of the test's folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ctrl_c import ctrl_c
from memplan.graphs.errors import InputError
from memplan.solvers.problem import NotFoundError
from memplan.solvers.workers import process
from memplan.solvers.workers.messages import portable
from memplan.solvers.workers.worker import Pool, Worker, WorkerCrashedError, WorkerFaultError

FUNCTIONS = """
import os, subprocess, sys, time
import numpy as np
from memplan.solvers.problem import NotFoundError

def double(call, values):
    return 2 * values

def number(call):
    return os.getpid()

def print_and_double(call, value):
    print("this is no message", flush=True)
    os.system("echo nor this")
    return 2 * value if sys.stdin.read() == "" else None

def refuse(call):
    raise NotFoundError("some", 9, 7, 8)

def fail(call):
    raise ZeroDivisionError("over\\nnothing")

def unpicklable(call):
    return lambda: 0

def abort(call):
    os.abort()

def leave(call, code):
    sys.exit(code)

def count(call):
    for number in range(10**9):
        call.report(number)
        if call.stopped.wait(0.01):
            return "stopped"

def interrupted(call):
    try:
        with call.interruptible():
            call.report("begun")
            time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(0.3)  # a late stop does not come through
        return "best so far"

def nothing_yet(call):
    with call.interruptible():
        time.sleep(600)

def deaf(call):
    for number in range(3):
        call.report(np.full(50_000, number))  # more than a pipe takes
    time.sleep(600)

def begin_another(call):
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    call.report(inner.pid)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return sys.platform != "linux" or "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_arrays_go_and_come_and_one_process_answers_all() -> None:
    with Worker("test") as worker:
        for size in (0, 3, 10**6):
            worker.call("functions:double", np.arange(size))
            assert worker.wait().value.tolist() == (2 * np.arange(size)).tolist()
        assert worker.ready


def test_what_a_function_prints_is_no_message() -> None:
    with Worker("test") as worker:
        worker.call("functions:print_and_double", 3)
        assert worker.wait().value == 6


def test_errors_of_memplan_come_as_they_are_and_others_as_a_line() -> None:
    pool = Pool("test")
    with pytest.raises(NotFoundError) as refused:
        pool.call("functions:refuse")
    assert (refused.value.min_memory, refused.value.found) == (7, 8)
    with pytest.raises(WorkerFaultError, match=r"^ZeroDivisionError: over nothing$"):
        pool.call("functions:fail")
    with pytest.raises(WorkerFaultError, match="pickle"):
        pool.call("functions:unpicklable")
    with pytest.raises(WorkerFaultError, match=r"^ModuleNotFoundError: No module named 'nowhere'$"):
        pool.call("nowhere:function")
    with pytest.raises(WorkerFaultError, match=r"^AttributeError: "):
        pool.call("functions:there_is_none")
    assert len(pool.workers) == 1  # none of this costs the process
    pool.close()
    error = InputError("no")
    assert portable(error) is error


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("call", "reason", "code"),
    [
        (("functions:abort",), "exit status -6", -6),
        (("functions:leave", 3), "exit status 3", 3),
        (("functions:leave", "no more handles"), "no more handles", 1),
    ],
)
def test_a_crash_is_an_error_and_the_next_call_gets_a_new_process(
    call: tuple[str, object], reason: str, code: int
) -> None:
    pool = Pool("test")
    with pytest.raises(WorkerCrashedError, match=re.escape(reason)) as crashed:
        pool.call(*call)
    assert crashed.value.exit_code == code
    assert pool.call("functions:double", 2).value == 4
    pool.close()


def test_a_limit_asks_for_the_result_and_events_come_before_it() -> None:
    heard = list[int]()
    with Worker("test") as worker:
        worker.call("functions:count")
        ending = worker.wait(time.monotonic() + 3.0, event=heard.append)
        assert (ending.answered, ending.value, ending.interrupted) == (True, "stopped", False)
        assert heard == list(range(len(heard)))
        assert len(heard) > 1
        worker.call("functions:count")
        assert worker.wait(cancelled=lambda: True).cancelled
        worker.call("functions:double", 1)  # the stop before is not for this one
        assert worker.wait().value == 2


def test_a_stop_interrupts_as_ctrl_c_does_once() -> None:
    with Worker("test") as worker:
        worker.call("functions:interrupted")
        begun = threading.Event()
        ending = worker.wait(event=lambda _event: begun.set(), cancelled=begun.is_set)
        assert (ending.answered, ending.value) == (True, "best so far")
        worker.call("functions:nothing_yet")
        with pytest.raises(KeyboardInterrupt):
            worker.wait(cancelled=lambda: True)
        assert worker.ready


def test_one_that_does_not_stop_is_ended_and_its_events_are_kept() -> None:
    heard = list[int]()
    pool = Pool("test")
    ending = pool.call(
        "functions:deaf",
        end=time.monotonic() + 2.0,
        event=lambda event: heard.append(int(event[0])),
        grace=lambda: 0.2,
    )
    assert not ending.answered
    assert heard == [0, 1, 2]
    assert pool.call("functions:double", 2).value == 4
    pool.close()


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_asks_for_the_result_and_a_second_one_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LAST_SECONDS", 1000.0)  # beyond the test's own limit
    pool = Pool("test")
    with ctrl_c(0.7):
        ending = pool.call("functions:count")
    assert (ending.value, ending.interrupted) == ("stopped", True)
    for seconds in (0.7, 1.2):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.call("functions:deaf")
    pool.close()


@pytest.mark.scripts
def test_an_idle_worker_ends_and_a_call_that_meets_its_end_is_answered() -> None:
    pool = Pool("test", idle_seconds=0.3)
    first = pool.call("functions:number").value
    wait_until_gone(first)
    for pause in (0.25, 0.28, 0.3, 0.31, 0.33):
        assert pool.call("functions:double", 1).value == 2
        time.sleep(pause)
    assert pool.call("functions:number").value != first
    pool.close()


def test_threads_have_a_worker_each_and_share_the_idle_ones() -> None:
    pool, both, numbers = Pool("test"), threading.Barrier(2), list[int]()

    def call() -> None:
        both.wait()
        numbers.append(pool.call("functions:number").value)

    for _ in range(3):
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(numbers)) <= 2
    assert len(numbers) == 6
    pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_workers_of_its_own_and_leaves_its_parents_alone() -> None:
    pool = Pool("test")
    mine = pool.call("functions:number").value
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writer, str(pool.call("functions:number").value).encode())
            pool.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 99)) != mine
    assert pool.call("functions:number").value == mine
    pool.close()


PROGRAM = """
import sys, time
from memplan.solvers.workers.worker import Pool, Worker
pool, worker = Pool("test"), Worker("test")
print(pool.call("functions:number").value)
worker.call("functions:begin_another")
message = worker.hear(60.0)
print(worker.process.pid)
print(message.read(), flush=True)
if sys.argv[1] == "kill":
    time.sleep(600)
"""


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize("ending", ["end", "kill"])
def test_workers_and_what_they_started_end_with_the_program(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a warning of an open file, and without a folder where the program could remove it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-X", "dev", "-c", PROGRAM, ending]
    program = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    pids = [int(program.stdout.readline()) for _ in range(3)]
    if ending == "kill":
        program.kill()
    _out, said = program.communicate(timeout=60)
    assert (program.returncode, said) == (-9 if ending == "kill" else 0, "")
    for pid in pids:
        wait_until_gone(pid)
    if ending == "end":
        assert not list(tmp_path.glob("memplan-*"))
