"""An iteration of a schedule with transfers, as straight-line Python: codegen.py's calls, and between them

    def step(residents, settings, held, now, last, leaving, left):
        v0, v1, = residents
        (d2, h2, k5, ) = (held['d2'], held['h2'], held['k5'], )     # copies of persistent tensors
        v9 = f0(v1, v0)
        h9 = host(4096).open()                             # memory for a copy on the host
        now[3] = add(D2H, offload, (v9, h9), (), ())       # asynchronous
        leaving[4] = v9,                                   # a delete that is pending: its memory stays …
        del v9
        wait(now[3])                                       # … until a computation needs the memory, and waits
        leaving.pop(4)
        …
        d9 = room(h9.size)
        now[8] = add(H2D, prefetch, (h9, d9), (last[7],), ())   # waits for a ticket of the iteration before
        wait(now[8])
        v9 = value(d9, c4)                                 # the value that the copy has at its start

The names are indices: d, h and k of the storages of which they are copies on device, host and disk. `now`
and `last` are the tickets of this iteration's jobs and of the previous one's, `leaving` and `left` their
pending deletes. What is to wait and when memory is freed is the dry run's decision (dry_run.py); pending
copies on host and disk are let go of by the job that needs their memory. A prefetch that needs the memory of
one pending copy of the same size, and fits in it to the byte, takes over its very memory: so the computing
goes on while the one leaves and the other comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...devices.device.device import Device
from ...graphs.graph import Graph, Mode
from ...graphs.machine import Memory
from ...planner.addresses.layout import Layout
from ...planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb
from ...planner.simulator.clock import Queue, transfer_queue
from ...program.free_names import Name
from ...program.program import Call, Operation, Program, Ref, values_read
from ...updates.clipping import clip
from .codegen import Code
from .copies import CopyWriter, Place, tuple_of, variable
from .dry_run import IterationCode, copy_of_key
from .host_calls import CpuOperation, HostCall, check_mode
from .placement import Placement


def generate_iteration(
    program: Program,
    graph: Graph,
    schedule: Schedule,
    iteration: IterationCode,
    carried: Sequence[Place],
    device: Device,
    *,
    timed: bool = False,
    addresses: Layout | None = None,
    placement: Placement | None = None,
) -> Code:
    """Generate the code of one iteration of a schedule with transfers.

    carried: the copies of persistent tensors that iterations hand on to each other.
    addresses: of pinned host copies.
    timed, placement: as in `generate`; with `timed`, what runs on the CPU is `timed((operation, mode),
        call)`.

    Raises MemplanError for an execution variant that can't be run.
    """
    writer = _IterationWriter(
        program=program,
        graph=graph,
        schedule=schedule,
        iteration=iteration,
        carried=carried,
        device=device,
        timed=timed,
        addresses=addresses,
        placement=placement,
    )
    for step, (verb, target, where) in enumerate(schedule.rows()):
        writer.step = step
        if verb == Verb.COMPUTE:
            writer.computation(step, target, where)
        elif verb == Verb.DELETE:
            writer.leave(step, target, where)
        else:
            writer.transfer(step, target, Queue(transfer_queue(verb, where)), where)
    return writer.code()


class _IterationWriter(CopyWriter):
    def computation(self, step: int, index: int, mode_index: int) -> None:
        operation = self.program.operations[index]
        if mode_index == DEFAULT_MODE:
            if index in self.graph.operations.comm:
                self.issue(step, operation)
                return
            self.wait(step)
            if on_peers := self.graph.on_peers(index):
                self.compute(index, self._on_shares(operation, on_peers))
                return
            self.compute(index, self.launched(operation, self.graph.operations.workspace.item(index)))
            return
        mode = self.graph.operations.modes[index][mode_index - 1]
        operation = operation._replace(writes=mode.writes)
        check_mode(operation, mode, self.device)
        if mode.on_host:
            self._on_cpu(step, operation, mode, (index, mode_index))
            return
        self.wait(step)
        if not mode.reads_host:
            operation = self.launched(operation, mode.workspace)
        else:
            operation = operation._replace(call=self._reading_host(operation, mode))
        self.compute(index, operation)

    def _on_shares(self, operation: Operation, on_peers: Sequence[int]) -> Operation:
        """Return an update as it runs on this rank's shares; the journal notes what it changes."""

        def on_share(argument: Any) -> Any:
            if isinstance(argument, Ref) and (x := self.program.values[argument.value].storage) in on_peers:
                return Name(f"h{x}.local")
            return argument

        call = operation.call
        changed = [x for x in operation.mutates if x in on_peers]
        self.lines.append(f"keep({', '.join(f'({x}, h{x}.local)' for x in changed)})")
        call = replace(
            call,
            arguments=tuple(map(on_share, call.arguments)),
            keywords={name: on_share(argument) for name, argument in call.keywords.items()},
        )
        return operation._replace(call=call, mutates=tuple(x for x in operation.mutates if x not in on_peers))

    def _assign(self, call: Call, kept: set[int | None], text: str | None = None) -> None:
        if call.target is clip and self.graph.tensors.spread:  # the norms are those of this rank's shares
            text = f"clip_over_ranks({', '.join(map(self.names.of_argument, call.arguments))})"
        super()._assign(call, kept, text)

    def _on_cpu(self, step: int, operation: Operation, mode: Mode, way: tuple[int, int]) -> None:
        call = CpuOperation(self.program, operation, mode.workspace)
        made = [x for x in operation.writes if (Memory.HOST, x) not in self.there]
        for x in made:
            self.there.add((Memory.HOST, x))
            self.lines.append(f"h{x} = host({self.sizes[x]}{self.address(step, x)})")
        inputs = tuple_of(f"h{x}" for x in call.inputs)
        results = ", ".join(f"{x}: h{x}" for x in made)
        keep = f"keep_later({', '.join(map(str, operation.mutates))})"
        arguments = f"(memory, {keep}, settings, ({inputs}), {{{results}}})"
        name = self.names.of_thing(call)
        self.add([step], Queue.CPU, f"timed({way}, {name})" if self.timed else name, arguments)

    def _reading_host(self, operation: Operation, mode: Mode) -> Call:
        call = HostCall(self.program, operation.call, mode.reads_host)
        blocks = (Name(f"h{x}") for x in call.storages)
        arguments = (Name("settings"), *blocks, *(Ref(v) for v in call.others))
        return replace(operation.call, target=call, arguments=arguments, keywords={})

    def issue(self, step: int, operation: Operation) -> None:
        """Write the lines of a collective. Variable p is its communication: it holds what that works with.

        One that reads when it is issued does so on the compute queue, which waits for what it reads. For
        others the compute queue waits for memory alone.
        """
        target: Any = operation.call.target
        if target.reads_when_issued:
            self.wait(step)
        else:
            self._leave_room(self.iteration.ends.get(step))
        for value in values_read(operation.call):
            self._need(value)
        made = [x for x in operation.writes if x not in self.held]
        self.held |= {x: set() for x in made}
        kept = [value for value in operation.call.outputs if self._lies_in(value, made)]
        for value in kept:
            if value is not None:
                self.held[self.program.values[value].storage].add(value)
        names = [f"v{value}" if value in kept else "_" for value in operation.call.outputs]
        function, arguments = self.names.of_call(operation.call).split("(", 1)
        self.lines.append(f"{', '.join(names)}, p{step} = {function}.issue({arguments}")
        if "_" in names:
            self.lines.append("del _")
        waited = target.reads_when_issued
        self.add([step], Queue.COMM, "communicate", f"(p{step},)", waited=waited)
        self.issued.add(step)
        if step in self.iteration.pending:  # what it holds for itself, until it has been waited for
            self.lines.append(f"leaving[{step}] = ()")

    # ── the whole ───────────────────────────────────────────────────────────────────────────────────

    def code(self) -> Code:
        self.mark()
        results = [self._result(value) for value in self.program.returned]
        steps = len(self.schedule)
        self.wait_for(sorted(self.issued))  # another plan's collectives may come next
        self.wait_for(self.iteration.waits.get(steps, ()))
        for key in sorted(key for key in self.iteration.pending if key >= steps):
            memory, x = copy_of_key(steps, key)
            names = self.names_of(x, memory)
            self.lines.append(f"leaving[{key}] = ({tuple_of(names)})")
        carried = [variable(*place) for place in self.carried]
        held = [f"held['{name}']" for name in carried]
        first = [
            f"({tuple_of(f'v{value}' for value in self.residents)}) = residents",
            f"({tuple_of(carried)}) = ({tuple_of(held)})",
        ]
        left = [
            variable(*place) for place in self.there if place[1] in self.moved and place not in self.carried
        ]
        self.lines.extend(f"del held['{name}']" for name in sorted(left))
        body = "\n    ".join([*first, *self.lines, f"return ({tuple_of(results)})"])
        source = f"def step(residents, settings, held, now, last, leaving, left):\n    {body}\n"
        return Code(source, self.names.things, self.residents)

    def _result(self, result: int) -> str:
        """Return an expression for a result, in whichever memory it is."""
        form = self.program.values[result]
        memory, producers = self.iteration.results[form.storage]
        if memory == Memory.DEVICE:
            self.wait_for(producers)
            self._need(result)
            return f"v{result}"
        self.lines.extend(f"{self.ticket(step)}.wait()" for step in self.due(producers))
        bytes_ = f"h{form.storage}.taken()" if memory == Memory.HOST else f"loaded(k{form.storage})"
        return f"value({bytes_}, {self.names.of_thing(form)})"
