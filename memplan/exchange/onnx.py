"""ONNX training graphs: forward and backward in one file, as onnxruntime's training artifacts are.

Sizes come from the file, with a number for each dimension that the file only names, and from inference
(onnx_shapes.py). A gradient `NAME_grad` that no rule knows has the size of NAME. Values that follow from
shapes alone are computed while reading and are not operations. A node is backward if it computes a `…_grad`
or reads what backward computes. A tensor with a gradient is a parameter, any other initializer or constant a
buffer. Reshapes are views. Times are the roofline's, FLOPs those of matrix products and convolutions.

Reference: the ONNX specification, onnx.proto; the operators of the domain com.microsoft as onnxruntime's
orttraining documents them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ..graphs.draft import Draft
from ..graphs.errors import InputError
from ..graphs.files.documents import read_bytes
from ..graphs.graph import Graph, Kind, Phase
from ..graphs.machines.presets import find_preset
from ..profiling.profile.estimate import estimate_source
from ..profiling.profile.roofline import Work, seconds
from .formats import Options
from .onnx_shapes import Shapes

MOST_BYTES = 2 * 2**30
"""Limit of a protobuf message."""
VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
RANDOM = {"Dropout", "BiasDropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
ADDS_IN_PLACE = {"InPlaceAccumulator", "InPlaceAccumulatorV2"}
GRADIENT = "_grad"
RATES = {"FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "BFLOAT16": "bfloat16"}


class Form(NamedTuple):
    """A tensor's shape, its bytes, and the field of `Gpu` that bounds its FLOPs."""

    shape: tuple[int, ...]
    bytes: int
    rate: str | None


def read(path: Path, options: Options) -> Graph:
    """Return the graph in an ONNX file, with estimated times.

    Raises ValueError or InputError, ModuleNotFoundError without onnx.
    """
    onnx: Any = import_module("onnx")
    if options.gpu is None:
        raise InputError("an ONNX file has no times: --gpu NAME says for which GPU to estimate them")
    preset = find_preset(options.gpu)
    data = read_bytes(path, MOST_BYTES)
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's
        raise ValueError(f"is not an ONNX model: {one_line(error)}") from None
    if not all(isinstance(text, str) for text in _names(model.graph)):  # protobuf gives bytes instead
        raise ValueError("is not an ONNX model: a name in it is not UTF-8 text")
    if not model.graph.node:
        raise ValueError("is not an ONNX model with operations")
    fix_dimensions(model.graph, options.dims or {})
    try:
        # data_prop: values of shapes are followed, which a Reshape takes as its size.
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # inference raises anything for a graph that is not valid
        raise ValueError(f"its sizes do not fit each other: {one_line(error)}") from None
    reading = _Reading(onnx, model)
    for node in model.graph.node:
        reading.take(node)
    for index, work in enumerate(reading.works):
        reading.rows[index]["time"] = seconds(work, preset.gpu)
    draft = reading.draft
    for row in reading.rows:
        draft.operation(**row)
    results = dict.fromkeys(
        reading.tensors[out.name] for out in model.graph.output if out.name in reading.tensors
    )
    estimated = estimate_source(preset.gpu, reading.works)
    source = {"kind": "onnx", "file": path.name, "estimate": estimated}
    made = [tensor for tensor in results if tensor not in reading.residents]
    return draft.graph(made, preset.machine, source)


class _Reading:
    """The graph that is built up node by node.

    tensors: by the file's names; a view has its base's.
    computed: names of values that follow from shapes.
    rows: operations, still without their times.
    works: FLOPs and bytes of each operation.
    """

    def __init__(self, onnx: Any, model: Any) -> None:
        graph = model.graph
        self.onnx = onnx
        self.draft = Draft(graph.name or "onnx")
        self.shapes = Shapes(onnx, model)
        self.forms: dict[str, Form] = {}
        self.producers = {name: node for node in graph.node for name in node.output}
        self.results = {out.name for out in graph.output}
        self.tensors: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []
        self.works: list[Work] = []
        self.backward: set[str] = set()
        self.changed = {node.input[0] for node in graph.node if node.op_type in ADDS_IN_PLACE}
        self.scalars = {out.name for out in graph.output if self._is_number(out.name)}
        self.names: set[str] = set()
        given = {one.name for one in graph.initializer}
        for name in dict.fromkeys((*(info.name for info in graph.input), *given)):
            fixed = Kind.BUFFER if name in given | self.changed else Kind.INPUT
            kind = Kind.PARAMETER if f"{name}{GRADIENT}" in self.producers else fixed
            self.tensors[name] = self.draft.tensor(name, self.form(name).bytes, kind)
        self.residents = {*self.tensors.values()}
        self.computed: set[str] = set()

    def take(self, node: Any) -> None:
        # AttributeProto.GRAPH and GRAPHS: branches and bodies of If and Loop.
        if any(attribute.type in (5, 10) for attribute in node.attribute):
            raise ValueError(f"{node.op_type} {node.name!r} has graphs of its own, which are not understood")
        inputs = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        self.shapes.take(node)
        for name in inputs:
            if name not in self.tensors and name not in self.computed:
                raise ValueError(f"{node.op_type} {node.name!r} reads {name!r}, which nobody has made")
        for name in outputs:
            if name in self.tensors or name in self.computed:
                raise ValueError(f"{node.op_type} {node.name!r} makes {name!r}, which is there already")
        if {*outputs} <= self.shapes.values.keys() - self.results:
            self.computed.update(outputs)
            return
        if node.op_type == "Constant" and not node.domain:
            self.tensors[outputs[0]] = self.draft.tensor(outputs[0], self.form(outputs[0]).bytes, Kind.BUFFER)
            self.residents.add(self.tensors[outputs[0]])
            return
        if any(name.endswith(GRADIENT) for name in outputs) or self.backward & {*inputs}:
            self.backward.update(outputs)
        backward = bool(self.backward & {*outputs})
        if node.op_type in VIEWS and inputs[0] in self.tensors:
            self.tensors[outputs[0]] = self.tensors[inputs[0]]
            return
        kind = Kind.GRADIENT if backward else Kind.ACTIVATION
        for name in outputs:
            own = kind
            if name.endswith(GRADIENT) and self.tensors.get(name.removesuffix(GRADIENT)) in self.residents:
                own = Kind.PARAMETER_GRADIENT
            self.tensors[name] = self.draft.tensor(name, self.form(name).bytes, own)
        changes = node.op_type in ADDS_IN_PLACE
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        if not backward and self.scalars & {*outputs}:
            phase, self.scalars = Phase.LOSS, set[str]()
        mutates = [self.tensors[inputs[0]]] if changes else []
        reads = dict.fromkeys(self.tensors[name] for name in inputs if name in self.tensors)
        self.rows.append(
            {
                "name": self._name(node),
                "reads": [tensor for tensor in reads if tensor not in mutates],
                "writes": [self.tensors[name] for name in outputs],
                "mutates": mutates,
                "phase": Phase.UPDATE if changes else phase,
                "recompute": not changes and phase != Phase.LOSS,
                "random": node.op_type in RANDOM,
            }
        )
        self.works.append(self._work(node, inputs, outputs))

    def form(self, name: str) -> Form:
        """Return a tensor's shape and size. Raises ValueError if the size is unknown."""
        if name not in self.forms:
            found = self.shapes.forms.get(name)
            if found is None and name.endswith(GRADIENT):
                found = self.shapes.forms.get(name.removesuffix(GRADIENT))
            if found is None:
                raise ValueError(self._unknown(name))
            self.forms[name] = self._of(*found)
            self.shapes.forms[name] = found
        return self.forms[name]

    def _unknown(self, name: str) -> str:
        node = self.producers.get(name)
        if node is None:
            return f"the input {name!r} is no tensor: an optimizer's graph, say, is no training iteration"
        return (
            f"the size of {name!r}, which {node.op_type} {node.name!r} makes, is not known: it depends on "
            "values that are known only when the graph runs, or on an operator that has no rule here"
        )

    def _work(self, node: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Work:
        forms = [self.form(name) for name in (*inputs, *outputs)]
        rate = next((form.rate for form in forms if form.rate), "float32")
        flops = self._flops(node)
        kind = ("convolution" if "Conv" in node.op_type else "product") if flops else "pointwise"
        return Work(flops, sum(form.bytes for form in forms), rate, kind)

    def _flops(self, node: Any) -> int:
        """Return the FLOPs of a node: two per multiply-add."""
        shapes = [self.form(name).shape if name else () for name in node.input]
        if node.op_type in ("MatMul", "Gemm", "FusedMatMul"):
            transposed = any(one.name == "transA" and one.i for one in node.attribute)
            # The inner dimension: the last of A, or of a transposed A the last but one.
            inner = shapes[0][-2 if transposed and len(shapes[0]) > 1 else -1]
            return 2 * inner * prod(self.form(node.output[0]).shape)
        if node.op_type == "Conv":
            # Each element of the result sums over one filter: the channels of a group times the window.
            return 2 * prod(self.form(node.output[0]).shape) * prod(shapes[1][1:])
        if node.op_type == "ConvTranspose":
            # Each element of the input is spread over one filter.
            return 2 * prod(shapes[0]) * prod(shapes[1][1:])
        if node.op_type == "ConvGrad":
            wanted = sum(bool(name) for name in node.output[:2])
            # As many as forward for each gradient that is wanted: of the input, and of the weights.
            return 2 * wanted * prod(shapes[0]) * prod(shapes[2][1:])
        return 0

    def _name(self, node: Any) -> str:
        name = node.name or f"{node.op_type}.{len(self.rows)}"
        while name in self.names:
            name = f"{name}.{len(self.rows)}"
        self.names.add(name)
        return name

    def _of(self, elem_type: int, shape: tuple[int, ...]) -> Form:
        if min(shape, default=0) < 0:
            raise ValueError(f"a tensor has a dimension of {min(shape)}")
        try:
            size = self.onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize
        except KeyError:
            raise ValueError(f"a tensor has the type {elem_type}, which onnx does not know") from None
        return Form(shape, size * prod(shape), RATES.get(self.onnx.TensorProto.DataType.Name(elem_type)))

    def _is_number(self, name: str) -> bool:
        form = self.shapes.forms.get(name)
        return form is not None and prod(form.shape) == 1


def _names(graph: Any) -> Iterator[Any]:
    """Yield all names in a graph."""
    yield graph.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (one.name for one in node.attribute)
    yield from (one.name for one in graph.initializer)
    for info in (*graph.input, *graph.output, *graph.value_info):
        yield info.name
        yield from (one.dim_param for one in info.type.tensor_type.shape.dim)


def fix_dimensions(graph: Any, dims: Mapping[str, int]) -> None:
    """Give each dimension that the file only names its size.

    Shapes of other tensors that still have an open dimension are dropped, so that they are inferred anew.
    Raises ValueError for an input's dimension without a size, and for a size of a dimension that no input
    has.
    """
    fixed = {one.name for one in graph.initializer}
    inputs = [info for info in graph.input if info.name not in fixed]
    open_: dict[str, str] = {}
    for info in inputs:
        for axis, one in enumerate(info.type.tensor_type.shape.dim):
            # A negative number stands for an open dimension too.
            if not (one.HasField("dim_value") and one.dim_value >= 0):
                name = one.dim_param or f"{info.name}.{axis}"
                open_.setdefault(name, info.name)
                if name in dims:
                    one.dim_param = name
    if others := [name for name in dims if name not in open_]:
        known = f"they have {', '.join(open_)}" if open_ else "all of them have numbers"
        raise ValueError(f"--dim {others[0]}={dims[others[0]]}: no input has this dimension open; {known}")
    if missing := [name for name in open_ if name not in dims]:
        what = ", ".join(f"{name!r} of {open_[name]!r}" for name in missing)
        advice = " ".join(f"--dim {name}={_EXAMPLE}" for name in missing)
        raise ValueError(f"the file names dimensions without their sizes: {what}; give them, as {advice}")
    for info in (*inputs, *graph.output, *graph.value_info):
        for one in info.type.tensor_type.shape.dim:
            if one.dim_param in dims:
                one.dim_value = dims[one.dim_param]
    for infos in (graph.value_info, graph.output):
        for info in infos:
            if any(not one.HasField("dim_value") for one in info.type.tensor_type.shape.dim):
                info.type.tensor_type.ClearField("shape")


_EXAMPLE = 8


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
