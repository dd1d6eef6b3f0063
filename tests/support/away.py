"""Steps whose weights lie on the host or the disk between iterations, and files written by somebody else."""

import random
from dataclasses import replace
from pathlib import Path

from memplan.devices.storage.disk import File
from memplan.graphs.graph import Mode
from memplan.graphs.machine import Memory
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from transfers import MACHINE, absent, unmeasured

HOST, DISK = Memory.HOST, Memory.DISK


def moving(iteration, seed=0, memories=(HOST, DISK)):
    """A step that moves all weights; with updates on the CPU, and so the states on the host."""
    program = trace(iteration)
    graph = unmeasured(program)
    graph, runs = with_updates_on_cpu(graph, program)
    weights = {program.values[value].storage for value in program.parameters.values()}
    for number in range(seed, seed + 100):
        schedule = absent(graph, runs, random.Random(number), share=0.9, memories=memories)
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
        if step.cycle is not None and weights <= step.cycle.moved:
            return step
    raise AssertionError("no schedule moves all weights")


def with_updates_on_cpu(graph, program):
    """The graph with modes for that, and all runs of a plain iteration in these."""
    updates = [i for i, operation in enumerate(program.operations) if operation.name.endswith("/update")]
    modes = {i: (Mode("host", 1.0, 0, (), on_host=True),) for i in updates}
    graph = replace(graph, operations=replace(graph.operations, modes=modes))
    return graph, [(index, int(index in modes)) for index in range(len(program.operations))]


def overwrite(file: File, data: bytes) -> None:
    """By somebody who finds the file that has no name."""
    with Path(f"/proc/self/fd/{file._disk._file.fileno()}").open("r+b") as other:
        other.seek(file._place())
        other.write(data)
