"""Lowering of the joint graph to a Program: which calls make storage, and which are only views of it.

The operators' schemas don't say (`_unsafe_view` claims to make storage), so the fake tensors of the trace
decide: a call whose results all lie in storages that are there already is a view, any other an operation.
What nobody needs is left out, except for calls that draw random numbers: eager draws them too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..devices.calls.randomness import draws, generator_place
from ..devices.storage.blocks import Allocations
from ..graphs.graph import Kind, Phase
from ..program.names import Names, full_name, operation_name
from ..program.program import Call, Operation, Program, Ref, values_read
from ..torch_support.reach import Path
from ..torch_support.unsupported import TraceError
from .generators import GENERATOR
from .joint import Joint
from .layers import MARK, Mark
from .pieces import IN_PLACE


def lower(joint: Joint) -> Program:
    """Build the program of a joint graph, without fingerprint."""
    found = _results(joint)
    if not found:
        raise TraceError("the module returns nothing that is wanted: name outputs, or evaluate its loss")
    lowering = _Lowering(joint, found[0].meta["val"].device)
    for node in _needed_nodes(joint.graph.graph):
        lowering.add(node)
    following = iter(found)
    loss = next(following) if joint.has_loss else None
    names = (joint.results, joint.gradients, joint.input_gradients)
    return lowering.program(loss, *({name: next(following) for name in group} for group in names))


class _Lowering:
    """The program as it grows, node by node, in order.

    made: per node its values, None for a result that nobody reads.
    """

    def __init__(self, joint: Joint, device: torch.device) -> None:
        self.joint = joint
        self.blocks = Allocations(device)
        self.names = Names()
        self.operations: list[Operation] = []
        self.views: dict[int, Call] = {}
        self.constants: dict[int, Tensor] = {}
        self.held: dict[int, Path] = {}
        self.generators: dict[Path, torch.Generator] = {}
        self.made: dict[fx.Node, tuple[int | None, ...]] = {}
        self.placeholders: list[int] = []
        self.expected = _named_residents(joint)

    def add(self, node: Any) -> None:
        if node.op == "placeholder":
            self.placeholders.append(self._resident(node, *next(self.expected)))
        elif node.op == "get_attr":
            value = self._resident(node, f"constants.{len(self.constants)}", Kind.BUFFER)
            tensor: Tensor = getattr(self.joint.graph, node.target)
            self.constants[value] = tensor
            if id(tensor) in self.joint.held:
                self.held[value] = self.joint.held[id(tensor)]
        elif node.target is operator.getitem:
            tuple_node, index = node.args
            self.made[node] = (self.made[tuple_node][index],)
        elif node.op == "call_function":
            self._call(node)

    def program(
        self,
        loss: fx.Node | None,
        outputs: Mapping[str, fx.Node],
        gradients: Mapping[str, fx.Node],
        input_gradients: Mapping[str, fx.Node],
    ) -> Program:
        groups = (self.joint.parameters, self.joint.buffers, self.joint.inputs)
        residents = iter(self.placeholders)
        parameters, buffers, inputs = ({name: next(residents) for name in group} for group in groups)
        returned, found, of_inputs = (
            {name: self._value_of(node) for name, node in group.items()}
            for group in (outputs, gradients, input_gradients)
        )
        result = None if loss is None else self._value_of(loss)
        self._mark_results(result, returned, found)
        return Program(
            device=self.blocks.device,
            storages=self.blocks.storages,
            values=self.blocks.values,
            operations=self.operations,
            views=self.views,
            parameters=parameters,
            buffers=buffers,
            inputs=inputs,
            constants=self.constants,
            loss=result,
            gradients=found,
            input_gradients=of_inputs,
            held=self.held,
            generators=self.generators,
            outputs=returned,
            output=self.joint.output,
        )

    def _resident(self, node: Any, name: str, kind: Kind) -> int:
        tensor: Tensor = node.meta["val"]
        if tensor not in self.blocks:
            layer = name.rpartition(".")[0] if kind == Kind.PARAMETER else ""
            self.blocks.storage(tensor, name, kind, layer or None)
        value = self.blocks.value(tensor)
        self.made[node] = (value,)
        return value

    def _call(self, node: Any) -> None:
        several = isinstance(node.meta["val"], tuple | list)
        results: list[Any] = list(node.meta["val"]) if several else [node.meta["val"]]
        if _changes_in_place(node) or any(_is_new(result, self.blocks) for result in results):
            self._operation(node, results, several)
        else:
            call = self._bind(node, results, several)
            self._lies_in(call, {self.blocks.values[value].storage for value in values_read(call)}, one=True)
            self.views.update((value, call) for value in call.outputs if value is not None)

    def _operation(self, node: Any, results: list[Any], several: bool) -> None:
        mark: Mark = node.meta.get(MARK) or Mark(None, False)
        changes = _changes_in_place(node)
        updates = changes and IN_PLACE not in node.meta
        phase = Phase.UPDATE if updates else Phase.BACKWARD if mark.backward else Phase.FORWARD
        name = self.names.unique(operation_name(node.target, mark.layer, phase))
        kind = Kind.GRADIENT if mark.backward else Kind.ACTIVATION
        writes = tuple(
            self.blocks.storage(result, f"{name}.{index}" if several else name, kind, mark.layer)
            for index, result in enumerate(results)
            if _is_new(result, self.blocks)
        )
        call = self._bind(node, results, several)
        read = dict.fromkeys(self.blocks.values[value].storage for value in values_read(call))
        changed = (self.blocks.values[self._value_of(node.args[0])].storage,) if changes else ()
        self._lies_in(call, {*writes, *changed})
        reads = tuple(storage for storage in read if storage not in changed)
        self.operations.append(
            Operation(
                name=name,
                phase=phase,
                layer=mark.layer,
                call=call,
                reads=reads,
                writes=writes,
                mutates=changed,
                random=_draws_numbers(node),
            )
        )

    def _lies_in(self, call: Call, storages: set[int], *, one: bool = False) -> None:
        """Refuse a call that returns a view together with new memory, or a view of several storages."""
        made = {self.blocks.values[value].storage for value in call.outputs if value is not None}
        if not made <= storages or (one and len(storages) != 1):
            raise TraceError(f"{full_name(call.target)} returns views in a way that can't be planned")

    def _bind(self, node: Any, results: list[Any], several: bool) -> Call:
        """Return the node's call, its results as new values."""
        # Only getitem reads a tuple; a result that none takes has no value.
        wanted = {user.args[1] for user in node.users} if several else {0}
        self.made[node] = tuple(
            self.blocks.value(result) if isinstance(result, Tensor) and index in wanted else None
            for index, result in enumerate(results)
        )
        arguments, keywords = self._refer(node.args), self._refer(node.kwargs)
        if (path := node.meta.get(GENERATOR)) is not None:
            self.generators[path] = self.joint.generators[path]
            place = generator_place(node.target)
            assert place is not None
            if place < len(arguments):
                arguments = (*arguments[:place], self.generators[path], *arguments[place + 1 :])
            else:
                keywords = {**keywords, "generator": self.generators[path]}
        return Call(node.target, arguments, keywords, self.made[node], several)

    def _refer(self, argument: Any) -> Any:
        """Return the argument, in Python's containers, with a Ref instead of every node."""
        if isinstance(argument, fx.Node):
            return Ref(self._value_of(argument))
        if isinstance(argument, dict):
            return {name: self._refer(part) for name, part in argument.items()}
        if isinstance(argument, tuple | list):
            parts = (self._refer(part) for part in argument)
            return list(parts) if isinstance(argument, list) else tuple(parts)
        return argument

    def _value_of(self, node: Any) -> int:
        (value,) = self.made[node]
        assert value is not None
        return value

    def _mark_results(
        self, loss: int | None, outputs: Mapping[str, int], gradients: Mapping[str, int]
    ) -> None:
        """Name the storages of the results, and give the loss's operation its phase."""
        values = self.blocks.values
        named = {f"the output {name}".strip(): value for name, value in outputs.items()}
        if loss is not None:
            named["the loss"] = loss
        for name, value in {**named, **gradients}.items():
            # Kinds up to this one are residents, whose values are there before the iteration.
            if self.blocks.storages[values[value].storage].kind <= Kind.OPTIMIZER_STATE:
                raise TraceError(f"{name}: its result is a tensor that the iteration does not compute")
        for name, value in gradients.items():
            storage = values[value].storage
            # Tied weights share one gradient, which keeps the first name.
            if self.blocks.storages[storage].kind != Kind.PARAMETER_GRADIENT:
                self.blocks.rename(storage, f"{name}.grad", Kind.PARAMETER_GRADIENT)
        if loss is None:
            return
        self.blocks.rename(values[loss].storage, "loss", Kind.ACTIVATION)
        for index, operation in enumerate(self.operations):
            if values[loss].storage in operation.writes:
                self.operations[index] = operation._replace(phase=Phase.LOSS)


def _is_new(result: Any, blocks: Allocations) -> bool:
    return isinstance(result, Tensor) and result not in blocks


# ── the joint graph: results, what they need, residents ─────────────────────────────────────────────


def _results(joint: Joint) -> list[fx.Node]:
    output: Any = next(iter(reversed(joint.graph.graph.nodes)))
    return list(output.args[0])


def _needed_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that the results, a change in place or eager's random numbers need, in order."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_root = node.op in ("placeholder", "output") or _changes_in_place(node) or _draws_numbers(node)
        if IN_PLACE in node.meta:  # nobody reads the result, but later readers of the buffer do
            is_root = node.meta[IN_PLACE] in needed
        if is_root or node in needed:
            needed.add(node)
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def _changes_in_place(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.copy_.default or IN_PLACE in node.meta


def _draws_numbers(node: fx.Node) -> bool:
    return node.op == "call_function" and draws(node.target, node.args, node.kwargs)


def _named_residents(joint: Joint) -> Iterator[tuple[str, Kind]]:
    """Yield names and kinds of the placeholders, in order."""
    for name in joint.parameters:
        yield name, Kind.PARAMETER
    for name in joint.buffers:
        yield name, Kind.BUFFER
    for name in joint.inputs:
        yield f"inputs.{name}", Kind.INPUT
