"""Queues of transfers: their order, what they wait for, what they hold and what their ends tell."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from threading import Thread

import pytest
import torch
from memplan.devices.storage import host_buffers
from memplan.runtime.run import queues


def test_a_queue_keeps_its_order_and_waits_for_tickets():
    done = []
    made = [queues.JobQueue("one"), queues.JobQueue("other")]
    first = made[0].add(lambda: time.sleep(0.01), (), (), ())
    second = made[0].add(done.append, (1,), (), ())
    third = made[1].add(done.append, (2,), (second,), ())
    last = made[1].add(done.append, (3,), (first,), ())
    for ticket in (third, last):
        ticket.wait()
    assert done == [1, 2, 3]
    for queue in made:
        queue.close()


def test_a_job_lets_go_of_what_it_holds_before_its_ticket_ends():
    class Thing:
        alive = 0

        def __init__(self):
            Thing.alive += 1

        def __del__(self):
            Thing.alive -= 1

    queue = queues.JobQueue("one")
    seen = []
    tickets = [queue.add(lambda _: seen.append(Thing.alive), (Thing(),), (), (Thing(),)) for _ in range(1)]
    for ticket in tickets:
        ticket.wait()
        assert Thing.alive == 0
    assert seen == [1]
    queue.close()


def test_what_fails_in_a_thread_is_raised_by_who_waits_for_it():
    queue, other = queues.JobQueue("one"), queues.JobQueue("other")

    def fail() -> None:
        raise ZeroDivisionError

    failed = queue.add(fail, (), (), ())
    later = other.add(lambda: None, (), (failed,), ())
    with pytest.raises(ZeroDivisionError):
        later.wait()
    queue.add(lambda: None, (), (), ()).wait()
    queue.close()
    other.close()


def refuse(*_given):
    raise ValueError("a hook of the script's")


@pytest.mark.parametrize("hook", [None, refuse], ids=["none", "one that raises"])
def test_errors_come_out_whatever_hooks_of_exceptions_the_script_has(hook, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", hook)
    monkeypatch.setattr(threading, "excepthook", hook)
    queue = queues.JobQueue("failing")

    def fail() -> None:
        raise ZeroDivisionError

    ticket = queue.add(fail, (), (), ())
    with pytest.raises(ZeroDivisionError):
        ticket.wait()
    queue.drain()
    queue.close()
    queue.join()


def test_a_queue_whose_thread_can_not_start_does_its_jobs_at_once_and_says_so(monkeypatch):
    """As with too many processes of a user: what fails is on the ticket, and nothing waits for a thread."""

    def fail(_thread):
        raise RuntimeError("can't start new thread")

    def divide():
        1 / 0  # noqa: B018

    queue, done = queues.JobQueue("late"), []
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", fail)
        with pytest.warns(UserWarning, match=r"late copies .* no thread of their own .*ulimit -u") as said:
            queue.add(done.append, (1,), (), ()).wait()
        failed = queue.add(divide, (), (), ())
        queue.add(done.append, (3,), (failed,), ())
        queue.drain()
    assert isinstance(failed.error(), ZeroDivisionError)
    queue.add(done.append, (2,), (), ()).wait()
    assert (done, len(said)) == ([1, 2], 1)
    queue.close()


def test_the_collector_may_give_back_in_the_midst_of_taking():
    count = host_buffers.Count()

    class Size(int):
        def __radd__(self, other):
            count.give_back(0)
            return other + int(self)

    taking = Thread(target=count.take, args=(Size(8),), daemon=True)
    taking.start()
    taking.join(10)
    assert not taking.is_alive()
    assert count.bytes == 8


@pytest.mark.scripts
def test_at_the_end_of_the_process_jobs_are_done():
    """A daemon's job would be cut off wherever it is."""
    script = """
import time
from memplan.runtime.run.queues import JobQueue
queue = JobQueue("one")
queue.add(lambda: (time.sleep(0.3), print("done", flush=True)), (), (), ())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "done\n"


# ── what a failure holds ────────────────────────────────────────────────────────────────────────────


def failed(cause: BaseException | None = None) -> BaseException:
    """An exception whose frame holds a tensor, with what it was raised from."""
    held = torch.ones(3)
    try:
        raise ValueError("ours") from cause
    except ValueError as error:
        assert held.numel() == 3
        return error


def holds(error: BaseException) -> bool:
    assert error.__traceback__ is not None
    return "held" in error.__traceback__.tb_frame.f_locals


AFTER_THE_END = """
import atexit
atexit.register(lambda: job.add(print, ("done",), (), ()).wait())  # the first comes last
from memplan.runtime.run.queues import JobQueue
job = JobQueue("d2h")
job.add(print, ("before",), (), ()).wait()
"""


def test_who_gives_a_job_after_the_end_of_the_threads_does_it():
    """As a program's own handler does that reads offloaded weights at its exit: it waited for ever."""
    command = [sys.executable, "-c", AFTER_THE_END]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("before\ndone\n", "")


def test_exceptions_and_their_causes_let_go_of_what_their_frames_hold():
    cause = failed()
    error = failed(cause)
    cause.__cause__ = error  # a circle ends
    queues.forget_frames(error)
    assert not holds(error)
    assert not holds(cause)


def test_what_the_caller_was_handling_is_left_alone():
    handled = failed()
    error = failed()
    error.__context__ = handled
    queues.forget_frames(error, but=handled)
    assert not holds(error)
    assert holds(handled)


class Refused(Exception):  # noqa: N818
    """An exception that a weak reference can be had of."""


def test_a_jobs_frames_do_not_keep_its_exception():
    """A cause's frame leads to the job's, which has the ticket, which has the exception."""

    def work() -> None:
        try:
            raise OSError
        except OSError as cause:
            raise Refused from cause

    job, known = queues.JobQueue("d2h"), list[weakref.ref[Refused]]()
    gc.disable()  # only what nobody refers to goes
    try:
        try:
            job.add(work, (), (), ()).wait()
        except Refused as error:
            queues.forget_frames(error)
            known.append(weakref.ref(error))
        job.add(lambda: None, (), (), ()).wait()  # the thread lets go of the job before
        assert known[0]() is None
    finally:
        gc.enable()
