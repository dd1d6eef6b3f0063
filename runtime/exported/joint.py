"""From an exported program's document to the joint graph that a trace would have made.

Each call runs once on fake tensors, which says what is a view of what; only PyTorch's own operators run. What
the loss, the outputs and the new buffers need is forward, the rest backward. New buffers are copied back at
the end, as in a trace.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from ...graphs.files.fields import Row, mapping, sequence
from ..program.outputs import output_of
from ..torch_internals import FakeTensorMode, can_decompose, schema_of
from ..trace.joint import Joint
from ..trace.layers import MARK, Mark
from .values import argument, node_named, sizes, tensor

SCHEMA = 8
OPERATORS = "torch.ops.aten."
RESIDENTS = {
    "parameter": "parameter_name",
    "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
}
aten: Any = torch.ops.aten


def joint_of(document: object) -> Joint:
    """Of a program's `model.json`. Raises ValueError."""
    try:
        return _joint_of(mapping(document, "an exported program"))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"is not what torch.export.save writes: {error!r}") from None


def _joint_of(row: Row) -> Joint:
    version = mapping(row.get("schema_version"), "schema_version").get("major")
    if version != SCHEMA:
        raise ValueError(f"is of version {version} of PyTorch's export schema; version {SCHEMA} is read")
    module = mapping(row.get("graph_module"), "graph_module")
    reading = _Reading(mapping(module.get("graph"), "graph"))
    signature = mapping(module.get("signature"), "signature")
    with reading.mode:
        reading.take_inputs(_specs(signature, "input_specs"))
        for node in sequence(reading.written.get("nodes"), "nodes"):
            reading.call(mapping(node, "a node"))
        return reading.joint(list(_specs(signature, "output_specs")))


def _specs(signature: Row, field: str) -> Iterator[tuple[str, Row]]:
    for spec in sequence(signature.get(field), field):
        row = mapping(spec, field)
        kind = next(iter(row), "")
        yield kind, mapping(row.get(kind), f"{field} {kind}")


class _Reading:
    """nodes: by the file's names. residents: parameters, buffers and inputs by name."""

    def __init__(self, written: Row) -> None:
        self.written = written
        self.forms = mapping(written.get("tensor_values"), "tensor_values")
        self.mode = FakeTensorMode()
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.residents: tuple[dict[str, fx.Node], ...] = ({}, {}, {})

    def take_inputs(self, specs: Iterator[tuple[str, Row]]) -> None:
        """Placeholders: parameters, then buffers with constants, then inputs."""
        groups: tuple[dict[str, str], ...] = ({}, {}, {})
        for kind, spec in specs:
            given = mapping(spec.get("arg"), "arg")
            if kind == "user_input":
                if "as_tensor" in given:
                    name = given["as_tensor"]["name"]
                    groups[2][name] = name
            elif kind in RESIDENTS:
                groups[0 if kind == "parameter" else 1][str(spec.get(RESIDENTS[kind]))] = given["name"]
            elif kind != "constant_input":
                raise ValueError(f"an input of kind {kind!r} is not understood")
        for group, found in zip(groups, self.residents, strict=True):
            for name, own in group.items():
                found[name] = self._keep(own, self.graph.placeholder(own), tensor(self.forms.get(own)))

    def call(self, row: Row) -> None:
        target = _operator(row.get("target"))
        try:
            args, kwargs = self._arguments(row, target)
            result = target(*_fakes(args), **_fakes(kwargs))
        except ValueError as error:
            raise ValueError(f"{row.get('name')}: {error}") from None
        except Exception as error:  # whatever a kernel says of wrong arguments
            raise ValueError(f"{row.get('name')}: {target} can't run: {error}") from None
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = result
        node.meta[MARK] = _layer(row)
        outputs = sequence(row.get("outputs"), "outputs")
        if isinstance(result, torch.Tensor):
            self._keep(outputs[0]["as_tensor"]["name"], node, result)
            return
        named = [one.get("as_tensor") for one in outputs]
        if len(outputs) == 1 and "as_tensors" in outputs[0]:
            named = outputs[0]["as_tensors"]
        for index, (one, part) in enumerate(zip(named, result, strict=False)):
            if one is not None and part is not None:
                item = self.graph.call_function(operator.getitem, (node, index))
                self._keep(one["name"], item, part)

    def joint(self, specs: list[tuple[str, Row]]) -> Joint:
        """With the results behind: the loss, outputs, gradients."""
        losses: list[fx.Node] = []
        outputs: dict[str, fx.Node] = {}
        gradients: dict[str, fx.Node] = {}
        changed: list[tuple[fx.Node, fx.Node]] = []
        for kind, spec in specs:
            given = mapping(spec.get("arg"), "arg")
            if kind == "user_output" and "as_tensor" not in given:
                continue
            node = node_named(given.get("as_tensor", given), self.nodes)
            if kind == "loss_output":
                losses.append(node)
            elif kind == "user_output":
                outputs[node.name] = node
            elif kind == "gradient_to_parameter":
                gradients[str(spec.get("parameter_name"))] = node
            elif kind == "gradient_to_user_input":
                outputs[f"{spec.get('user_input_name')}.grad"] = node
            elif kind == "buffer_mutation":
                changed.append((self.residents[1][str(spec.get("buffer_name"))], node))
            else:
                raise ValueError(f"a result of kind {kind!r} is not understood")
        kept = [node for name, node in outputs.items() if not name.endswith(".grad")]
        if losses:
            self._mark_backward([*losses, *kept, *(new for _buffer, new in changed)])
        for buffer, new in changed:
            self._copy(buffer, new)
        self.graph.output([*losses, *outputs.values(), *gradients.values()])
        parameters, buffers, inputs = ({n: _fakes(v) for n, v in g.items()} for g in self.residents)
        returned = output_of({name: _fakes(node) for name, node in outputs.items()}, True, None)
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        return Joint(module, parameters, buffers, inputs, bool(losses), returned, list(gradients), held={})

    def _mark_backward(self, ends: list[fx.Node]) -> None:
        forward: set[fx.Node] = set()
        while ends:
            node = ends.pop()
            if node not in forward:
                forward.add(node)
                ends.extend(node.all_input_nodes)
        for node in self.graph.nodes:
            if MARK in node.meta and node not in forward:
                node.meta[MARK] = node.meta[MARK]._replace(backward=True)

    def _copy(self, buffer: fx.Node, new: fx.Node) -> None:
        node = self.graph.call_function(aten.copy_.default, (buffer, new))
        node.meta["val"] = aten.copy_.default(_fakes(buffer), _fakes(new))

    def _keep(self, name: str, node: fx.Node, value: torch.Tensor) -> fx.Node:
        shape = sizes(mapping(self.forms.get(name), f"the form of {name}"), "sizes")
        if shape != list(value.shape):
            raise ValueError(f"{name} has the shape {list(value.shape)}, but the file says {shape}")
        node.meta["val"] = value
        self.nodes[name] = node
        return node

    def _arguments(self, row: Row, target: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = {
            one["name"]: argument(one["arg"], self.nodes) for one in sequence(row.get("inputs"), "inputs")
        }
        schema = schema_of(target).arguments
        by_place = [one for one in schema if not one.kwarg_only]
        while by_place and by_place[-1].name not in given:
            by_place.pop()
        args = tuple(given.pop(one.name, one.default_value) for one in by_place)
        return args, given


def _operator(name: object) -> Any:
    """Raises ValueError for what is none of PyTorch's own operators."""
    if not isinstance(name, str) or not name.startswith(OPERATORS):
        raise ValueError(f"{name!r} is none of PyTorch's own operators ({OPERATORS}…)")
    packet, _dot, overload = name.removeprefix(OPERATORS).partition(".")
    found: Any = getattr(getattr(aten, packet, None), overload, None)
    if type(found) is not type(aten.mm.default):
        raise ValueError(f"this PyTorch ({torch.__version__}) has no operator {name}")
    if schema_of(found).is_mutable or can_decompose(found):
        raise ValueError(f"{name} is not functional or not decomposed: save program.run_decompositions()")
    return found


def _fakes(tree: Any) -> Any:
    """The same with the fake tensor in the place of each node."""

    def fake(node: fx.Node) -> Any:
        return node.meta["val"]

    return map_arg(tree, fake)


def _layer(row: Row) -> Mark:
    """The innermost module of `nn_module_stack`: entries `key,path,type` with `;` between."""
    stack = str(mapping(row.get("metadata") or {}, "metadata").get("nn_module_stack", ""))
    parts = stack.split(";")[-1].split(",")
    return Mark(parts[1] or None if len(parts) > 2 else None, False)
