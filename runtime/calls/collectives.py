"""Collectives that a module calls itself: all-gathers, all-reduces, … of torch's functional kind.

PyTorch writes each as two calls, one that starts it and one that waits for its result, which is the same
memory. Here they are one operation, which has ended when it returns: its input may be freed at once, and its
result is memory like any other. So a plan may recompute it, as all ranks do then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch import distributed as dist

from ..program.program import Call, Program
from ..sharded.ranks import Ranks
from ..torch_collectives import name_of_group, place_of_group, starts_collective, wait, waits
from ..unsupported import TraceError

# Gloo's thread lets go of what the operators give it some time after a collective has ended, and they copy
# more. These take what they return, and one copy; the ranks keep gloo from holding it.


def _all_reduce(ranks: Ranks, tensor: Tensor, by: str, _group: str) -> Tensor:
    made = tensor.clone(memory_format=torch.contiguous_format)
    ranks.add_up(made.view(-1), _reduction(by))
    return made


def _all_gather(ranks: Ranks, tensor: Tensor, size: int, _group: str) -> Tensor:
    made = tensor.new_empty(size * tensor.shape[0], *tensor.shape[1:])
    ranks.gather([(tensor.reshape(-1), made.view(-1))])
    return made


def _reduce_scatter(ranks: Ranks, tensor: Tensor, by: str, size: int, group: str) -> Tensor:
    return _all_reduce(ranks, tensor, by, group).chunk(size)[ranks.rank].clone()


def _reduction(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


_BY_GLOO: Mapping[str, Callable[..., Tensor]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
}


class Collective:
    """A collective that has ended when it returns.

    operator: PyTorch's, which only starts it.
    ranks: those whose own group it runs in, which a rank that fails leaves at once; None: in the group of
        the module's code.
    """

    def __init__(self, operator: Any, ranks: Ranks | None) -> None:
        self.operator, self.ranks = operator, ranks
        self.__name__ = operator.overloadpacket.__name__
        self._place = place_of_group(operator)

    def __call__(self, *arguments: Any) -> Any:
        if self.ranks is None:
            return self._run(arguments)
        by_gloo = _BY_GLOO.get(self.__name__) if self.ranks.on_gloo else None
        with self.ranks.running() as group:
            if by_gloo is not None:
                return by_gloo(self.ranks, *arguments)
            return self._run(self._with_group(arguments, group))

    def __eq__(self, other: object) -> bool:
        """Tell whether calls of both cost the same."""
        return isinstance(other, Collective) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    def group_of(self, call: Call) -> str:
        """Return the name of the group, in the module's code, of a call of it."""
        return call.arguments[self._place]

    def with_name(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with the group's name for the group, which no program can keep."""
        return self._with_group(arguments, name_of_group(arguments[self._place]))

    @property
    def _known(self) -> tuple[Any, int]:
        return self.operator, id(self.ranks)

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


def groups_of(program: Program) -> dict[str, str]:
    """Return, by the names of the groups whose collectives the program calls, the first operation of each."""
    found = dict[str, str]()
    for operation in program.operations:
        if isinstance(target := operation.call.target, Collective):
            found.setdefault(target.group_of(operation.call), operation.name)
    return found
