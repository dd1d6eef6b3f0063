"""Conversion of an exported program's document to the joint graph that a trace would have made.

Each call runs once on fake tensors, which says what is a view of what; only PyTorch's own operators run. What
the loss, the outputs and the new buffers need is forward, the rest backward. New buffers are copied back at
the end, as in a trace.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from ...graphs.errors import MemplanError
from ...graphs.files.fields import Row, mapping, sequence
from ...program.outputs import output_of
from ...torch_support.torch_fakes import DynamicOutputShapeException, FakeTensorMode
from ...torch_support.torch_operators import CALLS_FOR_THE_ORDER, can_decompose, schema_of
from ...tracing.joint import Joint
from ...tracing.layers import MARK, Mark
from .values import SCALAR_TYPES, UnknownNumberError, argument, node_named, sizes, tensor

SCHEMA = 8
OPERATORS = "torch.ops.aten."
HIGHER = "torch.ops.higher_order."
_COMPOSITE = "the program is not functional or not decomposed: save program.run_decompositions()"
_FOR_THE_ORDER = tuple(OPERATORS + name for name in CALLS_FOR_THE_ORDER)
_NUMBERS = {"as_sym_int", "as_sym_bool", "as_sym_float", "as_int", "as_bool", "as_float"}
"""The types of results that are numbers of Python."""
RESIDENTS = {
    "parameter": "parameter_name",
    "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
}
aten: Any = torch.ops.aten


def joint_of(document: object) -> Joint:
    """Build the joint graph of a program's `model.json`. Raises ValueError."""
    try:
        return _joint_of(mapping(document, "an exported program"))
    except (MemplanError, ValueError):
        raise
    except Exception as error:  # a field that is another's, wherever in PyTorch it shows
        what = f"{type(error).__name__}: {_first_line(error)}"
        raise ValueError(f"is not what torch.export.save writes: {what}") from None


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
    """The state of reading an exported program.

    nodes: by the file's names.
    residents: parameters, buffers and inputs by name.
    numbers: those that the program computes, by name: the node that makes them. They are known only when the
        program runs, and no trace on fake tensors has them; a program may verify them all the same.
    """

    def __init__(self, written: Row) -> None:
        self.written = written
        self.forms = mapping(written.get("tensor_values"), "tensor_values")
        self.mode = FakeTensorMode()
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.residents: tuple[dict[str, fx.Node], ...] = ({}, {}, {})
        self.numbers: dict[str, str] = {}

    def take_inputs(self, specs: Iterator[tuple[str, Row]]) -> None:
        """Create the placeholders: parameters, then buffers with constants, then inputs."""
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
        name, outputs = _named(row), _outputs(row)
        if only_verifies(row.get("target")):
            return
        if outputs and all(kind in _NUMBERS for kind, _value in outputs):
            self.numbers.update(
                (value["as_name"], _named(row)) for _kind, value in outputs if "as_name" in value
            )
            return
        name = _named(row)
        target = _operator(row.get("target"), name)
        try:
            args, kwargs = self._arguments(row, target)
            result = target(*_fakes(args), **_fakes(kwargs))
        except UnknownNumberError as error:
            if error.name in self.numbers:
                raise ValueError(
                    f"{name}: needs a number that {self.numbers[error.name]} takes from a tensor, known only "
                    "when the program runs: keep it a tensor, or make it a constant of the model"
                ) from None
            raise ValueError(f"{name}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        except DynamicOutputShapeException as error:
            raise ValueError(
                f"{name}: the size of its result depends on values of a tensor ({error}), which are known "
                "only when the program runs: multiply by the mask, or use torch.where"
            ) from None
        except Exception as error:  # whatever a kernel says of wrong arguments
            raise ValueError(f"{name}: {target} can't run: {_first_line(error)}") from None
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = result
        node.meta[MARK] = _layer(row)
        if isinstance(result, torch.Tensor):
            self._keep(_tensor_name(outputs, 0), node, result)
            return
        named: list[Any] = [value if kind == "as_tensor" else None for kind, value in outputs]
        if len(outputs) == 1 and outputs[0][0] == "as_tensors":
            named = outputs[0][1]
        if not isinstance(result, tuple | list):
            raise ValueError(f"{name}: {target} makes {type(result).__name__}, no tensors")
        for index, (one, part) in enumerate(zip(named, result, strict=False)):
            if one is not None and part is not None:
                item = self.graph.call_function(operator.getitem, (node, index))
                self._keep(one["name"], item, part)

    def joint(self, specs: list[tuple[str, Row]]) -> Joint:
        """Complete the graph with its results, the loss, outputs and gradients, and return it."""
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
        has_loss, names = bool(losses), list(gradients)
        return Joint(
            graph=module,
            parameters=parameters,
            buffers=buffers,
            inputs=inputs,
            has_loss=has_loss,
            output=returned,
            gradients=names,
            input_gradients=[],
            held={},
        )

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
        # If this PyTorch makes another form than the file says, all sizes after it would be wrong.
        shape = sizes(mapping(self.forms.get(name), f"the form of {name}"), "sizes")
        if shape != list(value.shape):
            raise ValueError(f"{name} has the shape {list(value.shape)}, but the file says {shape}")
        dtype = SCALAR_TYPES.get(self.forms[name].get("dtype"))
        if dtype != value.dtype:
            raise ValueError(f"{name} is of {value.dtype}, but the file says {dtype}")
        node.meta["val"] = value
        self.nodes[name] = node
        return node

    def _arguments(self, row: Row, target: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = {
            one["name"]: argument(one["arg"], self.nodes) for one in sequence(row.get("inputs"), "inputs")
        }
        schema = schema_of(target).arguments
        by_place = [one for one in schema if not one.kwarg_only]
        # Arguments that the file leaves out at the end have their defaults.
        while by_place and by_place[-1].name not in given:
            by_place.pop()
        args = tuple(given.pop(one.name, one.default_value) for one in by_place)
        return args, given


def only_verifies(target: object) -> bool:
    """Tell whether a call does nothing but verify, or note its position in the program.

    Such a call is one of PyTorch's own operators, changes none of its arguments, and has no result, or one
    that is there for the order alone. Programs have such calls before conversions and around numbers. No plan
    needs them.
    """
    if not isinstance(target, str) or not target.startswith((OPERATORS, "torch.ops.profiler.")):
        return False
    if target.startswith(_FOR_THE_ORDER):
        return True
    found = _found(target)
    return found is not None and not schema_of(found).returns and not schema_of(found).is_mutable


def _operator(name: object, call: str) -> Any:
    """Return the operator of that name.

    call: the call that needs it, for messages.

    Raises ValueError if it is not one of PyTorch's own operators, or not functional and decomposed.
    """
    if isinstance(name, str) and name.startswith(HIGHER):
        kind = name.removeprefix(HIGHER)
        if kind.startswith("wrap_with_"):
            raise ValueError(
                f"{call}: {kind}: the program is not decomposed: save program.run_decompositions()"
            )
        raise ValueError(
            f"{call}: {kind} takes functions, and which of them run, or how often, is not in the program: "
            "write it with operators on tensors (torch.where for torch.cond, a Python loop for a scan)"
        )
    if not isinstance(name, str) or not name.startswith(OPERATORS):
        raise ValueError(f"{call}: {name!r} is none of PyTorch's own operators ({OPERATORS}…)")
    found = _found(name)
    if found is None:
        raise ValueError(f"{call}: this PyTorch ({torch.__version__}) has no operator {name}")
    if schema_of(found).is_mutable or can_decompose(found):
        raise ValueError(
            f"{call}: {name} is not functional or not decomposed: save program.run_decompositions()"
        )
    return found


def _found(name: str) -> Any:
    """Return PyTorch's operator of this name, `torch.ops.` and so on; None if there is none."""
    space, _dot, rest = name.removeprefix("torch.ops.").partition(".")
    packet, _dot, overload = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, space), packet), overload)
    except (AttributeError, RuntimeError):
        return None
    # An overload, not whatever else may have that name in torch.ops.
    return found if type(found) is type(aten.mm.default) else None


def _named(row: Row) -> str:
    """Name a call, with the line of the user's that makes it if the file says so."""
    metadata = mapping(row.get("metadata") or {}, "metadata")
    lines = _LINE.findall(str(metadata.get("stack_trace", "")))
    place = f" ({PurePath(lines[-1][0]).name}:{lines[-1][1]})" if lines else ""
    return f"{row.get('name') or row.get('target')}{place}"


_LINE = re.compile(r'File "([^"<\n]*)", line (\d+)')


def _outputs(row: Row) -> list[tuple[str, Any]]:
    """Return a call's results: the type of each, and the value that is written there."""
    rows = [mapping(one, "an output") for one in sequence(row.get("outputs"), "outputs")]
    if not all(len(one) == 1 for one in rows):
        raise ValueError("an output must have one type")
    return [next(iter(one.items())) for one in rows]


def _tensor_name(outputs: list[tuple[str, Any]], place: int) -> str:
    if place >= len(outputs) or outputs[place][0] != "as_tensor":
        raise ValueError("a call that makes a tensor has no name for it")
    return outputs[place][1]["name"]


def _first_line(error: Exception) -> str:
    return " ".join(str(error).partition("\n")[0].split())[:300]


def _fakes(tree: Any) -> Any:
    """Return the tree with each node replaced by its fake tensor."""

    def fake(node: fx.Node) -> Any:
        return node.meta["val"]

    return map_arg(tree, fake)


def _layer(row: Row) -> Mark:
    """Return the innermost module of `nn_module_stack`: entries `key,path,type` with `;` between."""
    stack = str(mapping(row.get("metadata") or {}, "metadata").get("nn_module_stack", ""))
    parts = stack.split(";")[-1].split(",")
    return Mark(parts[1] or None if len(parts) > 2 else None, False)
