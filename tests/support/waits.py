"""Schedules by hand, for each wait of the runtime that random ones seldom need: one stream or thread does
nothing while any other still does something, and what was not waited for is seen. From the third turn on, the
code of the turns is there, and nobody rests.

All are of `blocks` in hostile.py. Its tensors by number: 0, 1, 2, 3 and 4 are the weights 0.weight, 0.bias,
3.weight, 3.bias, 5.weight; 38 and 39 the states of 5.weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hostile import Case, Lateness, check_case, program_of, seeded
from memplan.graphs.graph import Graph, Mode
from memplan.graphs.machine import Memory
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    Verb,
    compute,
    delete,
    offload,
    prefetch,
)
from memplan.program.graph import Cost, graph_of
from transfers import MACHINE, adamw

_Build = Callable[[Graph, list[ScheduleStep]], tuple[list[ScheduleStep], Initial]]
HOST, DISK = Memory.HOST, Memory.DISK
LAST_WEIGHT, ITS_STATES = 4, (38, 39)


class Wait(NamedTuple):
    """starved: as in `Lateness`. build: steps and initial places, from the graph and its plain steps. modes:
    operations that run on the CPU, and their workspaces."""

    starved: str
    build: _Build
    updates: bool = True
    host_capacity: int | None = None
    modes: Mapping[str, int] = {}


def check_wait(name: str) -> None:
    wait = WAITS[name]
    optimizer: Any = adamw if wait.updates else None
    program = program_of("blocks", optimizer)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations), block_bytes=512)
    index = graph.operation_index
    modes = {
        index[name]: (Mode("host", 1.0, workspace, program.operations[index[name]].writes, on_host=True),)
        for name, workspace in wait.modes.items()
    }
    graph = replace(graph, operations=replace(graph.operations, modes=modes))
    steps, initial = wait.build(graph, list(baseline_schedule(graph)))
    schedule, machine = Schedule.of(steps, initial), replace(MACHINE, host_capacity=wait.host_capacity)
    made = Case(seeded("blocks", optimizer), program, graph, schedule, budget=None, machine=machine)
    check_case("blocks", optimizer, made, Lateness(0, wait.starved), turns=4)


def _after(
    graph: Graph, steps: Iterable[ScheduleStep], more: Mapping[str, list[ScheduleStep]]
) -> list[ScheduleStep]:
    """Behind each run of an operation some more steps."""
    names = {graph.operation_index[name]: later for name, later in more.items()}
    found: list[ScheduleStep] = []
    for step in steps:
        found += [step, *(names.get(step.target, ()) if step.verb == Verb.COMPUTE else ())]
    return found


def _results_come_back(graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
    for name in ("loss", "5.weight.grad"):
        x = graph.tensor_index[name]
        steps += [offload(x), delete(x), prefetch(x), delete(x, HOST)]
    return steps, Initial()


def _results_go_to_the_host(graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
    for name in ("loss", "5.weight.grad"):
        x = graph.tensor_index[name]
        steps += [offload(x), delete(x)]
    return steps, Initial()


def _never_used(graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
    """A prefetch that nobody waits for, whose memory is free two turns later."""
    x = graph.tensor_index["4/tanh"]
    at = steps.index(delete(x))
    return [
        *steps[:at],
        offload(x),
        delete(x),
        prefetch(x),
        delete(x),
        delete(x, HOST),
        *steps[at + 1 :],
    ], Initial()


def _on_the_cpu(graph: Graph, steps: Iterable[ScheduleStep], names: Iterable[str]) -> list[ScheduleStep]:
    index = {graph.operation_index[name] for name in names}
    return [compute(s.target, 1) if s.verb == Verb.COMPUTE and s.target in index else s for s in steps]


def _changed_while_read(graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
    """A weight comes again for the backward part; its update on the CPU waits for nothing else."""
    x, gradient = LAST_WEIGHT, graph.tensor_index["5.weight.grad"]
    steps = _on_the_cpu(graph, _without(steps, delete(gradient)), ["5.weight/update"])
    more = {
        "5/mm": [delete(x)],
        "5/backward/mm": [offload(gradient), delete(gradient), prefetch(x)],
        "5.weight/update": [delete(x), delete(gradient, HOST)],
    }
    return [prefetch(x), *_after(graph, steps, more)], Initial(host=frozenset({x, *ITS_STATES}))


TO_THE_UPDATE = (
    "5/mm", "pow", "mean", "backward/ones_like", "backward/div", "backward/pow", "backward/mul",
    "backward/mul_2", "5/backward/mm", "5/backward/mm_2", "5.weight/update",
)  # fmt: skip


def _changed_while_read_in_the_turn_before(
    graph: Graph, steps: list[ScheduleStep]
) -> tuple[list[ScheduleStep], Initial]:
    """A weight comes back behind its update at the end of a turn. In the next one all that its update needs
    is made on the CPU; the device uses it once before that, for nothing."""
    x, there, made_by_it = LAST_WEIGHT, graph.tensor_index["4/tanh"], graph.tensor_index["5/mm"]
    back = graph.tensor_index["5/backward/mm_2"]
    on_cpu = [graph.operation_index[name] for name in TO_THE_UPDATE]
    made = {x for i in on_cpu for x, _bit in graph.contributions(i)}
    steps = [s for s in steps if s.verb == Verb.COMPUTE or s.target not in made - {back}]
    more = {
        "4/tanh": [offload(there)],
        "5/backward/mm_2": [compute(graph.operation_index["5/mm"]), delete(made_by_it)],
        "5.weight/update": [prefetch(back)],
    }
    steps = _after(graph, _on_the_cpu(graph, steps, TO_THE_UPDATE), more)
    steps += [delete(y, HOST) for y in sorted({there, *made} - set(graph.results))]
    return [*steps, prefetch(x)], Initial(host=frozenset(ITS_STATES), both=frozenset({x}))


def _used_by_the_cpu(*later: ScheduleStep, late: bool = False) -> _Build:
    """Room on the host that an update on the CPU still has, though its delete has passed; late: has not."""

    def build(graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
        x, gradient = LAST_WEIGHT, graph.tensor_index["5.weight.grad"]
        gone = delete(gradient, HOST)
        steps = _on_the_cpu(graph, _without(steps, delete(gradient)), ["5.weight/update"])
        more = {
            "5/backward/mm": [offload(gradient), delete(gradient)],
            "5/backward/mm_2": [delete(x)],
            "5.weight/update": [*later, gone] if late else [gone, *later],
        }
        steps = [prefetch(x), *_after(graph, steps, more)]
        return steps, Initial(host=frozenset({x, *ITS_STATES}))

    return build


def _refreshed_while_read(graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
    """The CPU reads a weight that the device has updated already, and copies to the host."""
    x, read, made = LAST_WEIGHT, graph.tensor_index["backward/mul_2"], graph.tensor_index["5/backward/mm_2"]
    more = {
        "5/backward/mm": [offload(read)],
        "5.weight/update": [offload(x), prefetch(made), delete(read, HOST), delete(made, HOST)],
    }
    steps = _after(graph, _on_the_cpu(graph, steps, ["5/backward/mm_2"]), more)
    return steps, Initial(both=frozenset({x}))


def _two_in_the_room_of_one(_graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
    """The host has room for 3.weight alone, which has not left it yet."""
    x = 2
    first = [prefetch(x), delete(x, HOST), offload(0), offload(1), delete(0, HOST), delete(1, HOST)]
    return [*first, *steps, offload(x), delete(x)], Initial(host=frozenset({x}))


def _to_the_disk_at_once(_graph: Graph, steps: list[ScheduleStep]) -> tuple[list[ScheduleStep], Initial]:
    """The first prefetch has the copy pinned: copies to other memory have ended when they return."""
    x = LAST_WEIGHT
    first = [offload(x, DISK), prefetch(x), delete(x), delete(x, HOST), prefetch(x, HOST), prefetch(x)]
    steps = [*first, *steps, offload(x), delete(x), delete(x, DISK)]
    return steps, Initial(host=frozenset({x}))


def _without(steps: Iterable[ScheduleStep], unwanted: ScheduleStep) -> list[ScheduleStep]:
    return [step for step in steps if step != unwanted]


UPDATE = {"5.weight/update": 0}
WAITS = {
    "the loss and gradients wait for their copies": Wait("2", _results_come_back, updates=False),
    "a result on the host is waited for": Wait("1", _results_go_to_the_host, updates=False),
    "a turn waits for the turn before the last": Wait("2", _never_used, updates=False),
    "a copy that is refreshed waits for its users": Wait(
        "cpu", _refreshed_while_read, modes={"5/backward/mm_2": 0}
    ),
    "what is changed in place waits for its users": Wait("2", _changed_while_read, modes=UPDATE),
    "uses go on into the next turn": Wait(
        "2",
        _changed_while_read_in_the_turn_before,
        modes=dict.fromkeys(TO_THE_UPDATE, 0),
    ),
    "memory that the CPU uses is a gate": Wait(
        "cpu", _used_by_the_cpu(offload(0), delete(0, HOST)), modes=UPDATE
    ),
    "the workspace on the CPU is a gate": Wait(
        "1", _used_by_the_cpu(offload(2), delete(2, HOST), late=True), modes={"5.weight/update": 2**16}
    ),
    "an allocation that waits is a gate": Wait("2", _two_in_the_room_of_one, host_capacity=2**16),
    "what is put on the host is there": Wait("0", _to_the_disk_at_once),
}
