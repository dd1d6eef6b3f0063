"""Copies on the queues of a device with streams: which thread gives them to it, and in what order."""

import threading
import warnings

import pytest
from hostile import between_device_and_host, planned_step
from memplan.devices.storage.arena import Arena
from memplan.devices.storage.host_buffers import Host
from memplan.planner.simulator.clock import Queue
from memplan.runtime.run.queues import JobQueue, Ticket
from memplan.runtime.run.streams import Streams
from not_none import not_none
from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays


@pytest.fixture
def device():
    return SimulatedDevice(delays=lambda seed: Delays(seed, 0.0))


@pytest.fixture
def queues(device):
    made = Streams(device)
    yield made
    made.close()


class Givers:
    """Work that notes which threads gave it to a stream, in what order."""

    def __init__(self):
        self.names = []

    def give(self, name, *_):
        where = "here" if threading.current_thread() is threading.main_thread() else "there"
        self.names.append(f"{name} {where}")


def test_a_copy_that_waits_for_the_device_alone_is_given_by_who_adds_it(device, queues):
    """On the device it waits all the same."""
    seen, gate = Givers(), threading.Event()
    device.current_stream().give(lambda: gate.wait(30))
    first = queues.add(Queue.D2H, seen.give, ("one",), (), ())
    second = queues.add(Queue.H2D, seen.give, ("two",), (first,), ())
    assert seen.names == ["one here", "two here"]
    assert not second.event.flag.is_set()
    gate.set()
    second.wait()


def test_behind_one_that_a_thread_gives_all_are_until_it_is_through(queues):
    seen, late = Givers(), Ticket()
    queues.add(Queue.H2D, seen.give, ("one",), (late,), ())
    last = queues.add(Queue.H2D, seen.give, ("two",), (), ())
    queues.add(Queue.D2H, seen.give, ("other",), (), ())
    assert seen.names == ["other here"]
    later = queues.add(Queue.D2H, seen.give, ("behind",), (last,), ())
    late.end()
    later.wait()
    queues.add(Queue.H2D, seen.give, ("three",), (last,), ()).wait()
    assert seen.names == ["other here", "one there", "two there", "behind there", "three here"]


@pytest.mark.parametrize("late", [True, False])
def test_room_in_host_memory_is_waited_for_by_the_thread(device, queues, late):
    seen, host = Givers(), Host(8, arena=Arena(device, 8))
    block = host.block(8, 0, 8)
    if not late:
        block.open()
    queues.add(Queue.D2H, seen.give, ("one", block), (), ()).wait()
    queues.add(Queue.D2H, seen.give, ("two",), (), (host.block(0),)).wait()
    assert seen.names == [f"one {'there' if late else 'here'}", "two there"]


def test_what_fails_is_told_by_its_ticket_and_stops_what_waits_for_it(queues):
    seen = Givers()

    def fail(*_):
        raise KeyboardInterrupt("by choice")

    failed = queues.add(Queue.D2H, fail, ("source", "target"), (), ())
    later = queues.add(Queue.H2D, seen.give, ("behind",), (failed,), ())
    free = queues.add(Queue.D2H, seen.give, ("free",), (), ())
    with pytest.raises(KeyboardInterrupt, match="by choice"):
        queues.wait(later)
    assert failed.left == ("source", "target")
    free.wait()
    queues.drain()
    assert seen.names == ["free here"]


@pytest.mark.parametrize("number", [3, 7, 12])
def test_the_thread_that_trains_gives_all_copies_between_device_and_host(device, monkeypatch, number):
    made, handed = between_device_and_host(number), []
    monkeypatch.setattr(JobQueue, "add", lambda *arguments: handed.append(arguments))
    step = planned_step(made, device)
    with warnings.catch_warnings(action="ignore"):
        for _turn in range(2):
            step.run(made.iteration.inputs)
    copies = len(not_none(step.cycle)._now)
    step.restore_to_device()
    assert copies >= 12
    assert handed == []
