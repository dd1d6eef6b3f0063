"""Collectives that a module calls itself: all-gathers, all-reduces, … of torch's functional kind.

PyTorch writes each as two calls, one that starts it and one that waits for its result, which is the same
memory. Here they are one operation, whose result is memory like any other. So a plan may recompute it, as all
ranks do then.

A call has ended when it returns: its input may be freed at once. `issue` only makes the result, and returns
the communication that fills it, for the queue between the ranks (runtime/run/queues.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch import distributed as dist

from ...program.program import Call, Program
from ...torch_support.torch_collectives import name_of_group, place_of_group, starts_collective, wait, waits
from ...torch_support.unsupported import TraceError
from ..sharded.communicator import Communicator
from ..sharded.ranks import Ranks

Issued = tuple[Tensor, Callable[[], None]]
"""A result without its values, and the communication that makes them."""

_AVERAGE = "avg"
"""A reduction that gloo does not know."""

# Gloo's thread lets go of what the operators give it some time after a collective has ended, and they copy
# more. These take what they return, and one copy; the ranks keep gloo from holding it.


def _all_reduce(among: Communicator, tensor: Tensor, by: str, _group: str) -> Issued:
    made = tensor.clone(memory_format=torch.contiguous_format)
    if by == _AVERAGE:
        return made, partial(among.average, [made.view(-1)])
    return made, partial(among.add_up, made.view(-1), _reduction(by))


def _all_gather(among: Communicator, tensor: Tensor, size: int, _group: str) -> Issued:
    made = tensor.new_empty(size * tensor.shape[0], *tensor.shape[1:])
    return made, partial(among.gather, [(tensor.reshape(-1), made.view(-1))])


def _reduce_scatter(among: Communicator, tensor: Tensor, by: str, size: int, _group: str) -> Issued:
    made = tensor.new_empty(tensor.shape[0] // size, *tensor.shape[1:])
    if by == _AVERAGE:
        # On gloo a scatter adds up in what it is given.
        sent = tensor.clone(memory_format=torch.contiguous_format) if among.on_gloo else tensor.contiguous()
        return made, partial(among.scatter, [(sent.view(-1), made.view(-1))])
    if not among.on_gloo:
        sent = tensor.contiguous().view(-1)
        return made, partial(among.reduce_scatter, sent, made.view(-1), _reduction(by))
    whole = tensor.clone(memory_format=torch.contiguous_format)

    def run() -> None:
        among.add_up(whole.view(-1), _reduction(by))
        made.copy_(whole.chunk(size)[among.place])

    return made, run


def _reduction(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


_PREPARED: Mapping[str, Callable[..., Issued]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
}


def communicate(run: Callable[[], None]) -> None:
    """Fill the result of a collective that was issued, in whatever thread."""
    with torch.no_grad():
        run()


class Collective:
    """A collective, which has ended when a call of it returns.

    operator: PyTorch's, which only starts it.
    ranks: those in whose own groups it runs, which a rank that fails leaves at once; None: in the group of
        the module's code.
    """

    reads_when_issued = True

    def __init__(self, operator: Any, ranks: Ranks | None) -> None:
        self.operator, self.ranks = operator, ranks
        self.__name__ = operator.overloadpacket.__name__
        self._place = place_of_group(operator)

    def __call__(self, *arguments: Any) -> Any:
        if self.ranks is None:
            return self._run(arguments)
        among = self.among(arguments)
        with self.ranks.in_order():
            if self.can_be_issued and among.on_gloo:
                made, run = self.issue(*arguments)
                run()
                return made
            with among.running() as group:
                return self._run(self._with_group(arguments, group))

    @property
    def can_be_issued(self) -> bool:
        """Whether its result can be made before it communicates."""
        return self.ranks is not None and self.__name__ in _PREPARED

    def issue(self, *arguments: Any) -> Issued:
        """Return the result without its values, and the communication that makes them.

        All other memory that it takes is there when this returns, and held by the communication.
        """
        return _PREPARED[self.__name__](self.among(arguments), *arguments)

    def among(self, arguments: tuple[Any, ...]) -> Communicator:
        """Return the communicator of a call."""
        assert self.ranks is not None
        return self.ranks.communicator(arguments[self._place])

    def __eq__(self, other: object) -> bool:
        """Tell whether calls of both cost the same."""
        return isinstance(other, Collective) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    def group_of(self, call: Call) -> str:
        """Return the group of a call of it: its label, or without ranks its name in the module's code."""
        return call.arguments[self._place]

    def with_name(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with the group's label, or name, for the group, which no program can keep."""
        name = name_of_group(arguments[self._place])
        return self._with_group(arguments, name if self.ranks is None else self.ranks.label(name))

    @property
    def _known(self) -> tuple[Any, str, int]:
        return self.operator, self.__name__, id(self.ranks)

    def _run(self, arguments: tuple[Any, ...]) -> Any:
        made = self.operator(*arguments)
        for each in made if isinstance(made, tuple | list) else (made,):
            wait(each)
        return made

    def _with_group(self, arguments: tuple[Any, ...], group: str) -> tuple[Any, ...]:
        return (*arguments[: self._place], group, *arguments[self._place + 1 :])


def join_waits(graph: fx.Graph, ranks: Ranks | None) -> None:
    """Replace each collective and the call that waits for its result by one operation.

    Raises TraceError for a result that is waited for twice: in the trace each wait has made a tensor.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and waits(node.target):
            _take_place(node.args[0], node)
    for node in graph.nodes:
        if node.op == "call_function" and starts_collective(node.target):
            made = Collective(node.target, ranks)
            node.target, node.args = made, made.with_name(node.args)


def _take_place(source: Any, wait_node: fx.Node) -> None:
    """Let the result of a collective be used where its wait is."""
    if any(user is not wait_node and waits(user.target) for user in source.users):
        raise TraceError(
            "the result of a collective is waited for twice: use what the function of "
            "torch.distributed._functional_collectives returns, which waits itself"
        )
    source.meta["val"] = wait_node.meta["val"]  # views of the result lie in the wait's memory
    wait_node.replace_all_uses_with(source)
    wait_node.graph.erase_node(wait_node)


def is_collective(call: Call) -> bool:
    return isinstance(call.target, Collective)


def collectives_in(program: Program) -> list[int]:
    """Return the places of the operations that are collectives."""
    return [place for place, one in enumerate(program.operations) if is_collective(one.call)]


def overlapping(program: Program) -> frozenset[int]:
    """Return the places of the collectives that a queue between the ranks can run: all, or none.

    One that can't stays among the computations, and the others with it: on two queues their order would
    differ from rank to rank.
    """
    places = collectives_in(program)
    makers = Counter(storage for operation in program.operations for storage in operation.writes)
    for place in places:
        operation = program.operations[place]
        target: Any = operation.call.target
        shared = any(makers[storage] > 1 for storage in operation.writes)
        if not target.can_be_issued or operation.mutates or operation.random or shared:
            return frozenset()
    return frozenset(places)


def groups_of(program: Program) -> dict[str, str]:
    """Return, by the groups whose collectives the program calls, the first operation of each."""
    found = dict[str, str]()
    for operation in program.operations:
        if isinstance(target := operation.call.target, Collective):
            found.setdefault(target.group_of(operation.call), operation.name)
    return found
