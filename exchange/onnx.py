"""ONNX training graphs: forward and backward in one file, as onnxruntime's training artifacts are.

Sizes come from the file and from ONNX's shape inference; of a gradient `NAME_grad`, which inference does not
know in onnxruntime's own operators, from NAME. A node is backward if it makes a `…_grad` or reads what
backward makes. What has a gradient is a parameter, any other initializer a buffer. Reshapes are views. Times
are the roofline's, FLOPs those of matrix products and convolutions.

Reference: the ONNX specification, onnx.proto; the operators of the domain com.microsoft as onnxruntime's
orttraining documents them.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ..graphs.draft import Draft
from ..graphs.errors import InputError
from ..graphs.files.documents import read_bytes
from ..graphs.graph import Graph, Kind, Phase
from ..graphs.machines.presets import find_preset
from ..runtime.profile.estimate import ESTIMATED
from ..runtime.profile.roofline import Work, seconds
from .formats import Options

MOST_BYTES = 2 * 2**30
"""What protobuf can hold."""
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
    """Raises ValueError or InputError, ModuleNotFoundError without onnx."""
    onnx: Any = import_module("onnx")
    if options.gpu is None:
        raise InputError("an ONNX file has no times: --gpu NAME says for which GPU to estimate them")
    preset = find_preset(options.gpu)
    data = read_bytes(path, MOST_BYTES)
    try:
        model = onnx.load_model_from_string(data)
        model = onnx.shape_inference.infer_shapes(model)
    except Exception as error:  # protobuf's, and whatever inference says of a graph that is none
        raise ValueError(f"is not an ONNX model: {error}") from None
    if not model.graph.node:
        raise ValueError("is not an ONNX model with operations")
    reading = _Reading(onnx, model.graph)
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
    estimated = {"gpu": preset.gpu.name, "data": preset.gpu.source, **ESTIMATED}
    source = {"kind": "onnx", "file": path.name, "estimate": estimated}
    made = [tensor for tensor in results if tensor not in reading.residents]
    return draft.graph(made, preset.machine, source)


class _Reading:
    """tensors: by the file's names, a view under its base's. rows: operations, still without their times."""

    def __init__(self, onnx: Any, graph: Any) -> None:
        self.onnx = onnx
        self.draft = Draft(graph.name or "onnx")
        self.forms: dict[str, Form | None] = {}
        for info in (*graph.input, *graph.value_info, *graph.output):
            self.forms[info.name] = self._form(info.type.tensor_type)
        for one in graph.initializer:
            self.forms[one.name] = self._of(one.data_type, tuple(one.dims))
        self.tensors: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []
        self.works: list[Work] = []
        self.backward: set[str] = set()
        self.changed = {node.input[0] for node in graph.node if node.op_type in ADDS_IN_PLACE}
        self.scalars = {out.name for out in graph.output if self._is_number(out.name)}
        self.names: set[str] = set()
        made = {name for node in graph.node for name in node.output}
        given = {one.name for one in graph.initializer}
        for name in dict.fromkeys((*(info.name for info in graph.input), *given)):
            fixed = Kind.BUFFER if name in given | self.changed else Kind.INPUT
            kind = Kind.PARAMETER if f"{name}{GRADIENT}" in made else fixed
            self.tensors[name] = self.draft.tensor(name, self.form(name).bytes, kind)
        self.residents = {*self.tensors.values()}

    def take(self, node: Any) -> None:
        if any(attribute.type in (5, 10) for attribute in node.attribute):
            raise ValueError(f"{node.op_type} {node.name!r} has graphs of its own, which are not understood")
        inputs = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        for name in inputs:
            if name not in self.tensors:
                raise ValueError(f"{node.op_type} {node.name!r} reads {name!r}, which nobody has made")
        for name in outputs:
            if name in self.tensors:
                raise ValueError(f"{node.op_type} {node.name!r} makes {name!r}, which is there already")
        if any(name.endswith(GRADIENT) for name in outputs) or self.backward & {*inputs}:
            self.backward.update(outputs)
        backward = bool(self.backward & {*outputs})
        if node.op_type in VIEWS:
            self.tensors[outputs[0]] = self.tensors[inputs[0]]
            self.forms.setdefault(outputs[0], None)
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
        reads = dict.fromkeys(self.tensors[name] for name in inputs)
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
        """Raises ValueError for a tensor of unknown size."""
        found = self.forms.get(name)
        if found is None and name.endswith(GRADIENT):
            found = self.forms.get(name.removesuffix(GRADIENT))
        if found is None:
            raise ValueError(
                f"the size of {name!r} is not known: give every dimension a number, and infer shapes "
                "with onnxruntime"
            )
        self.forms[name] = found
        return found

    def _work(self, node: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Work:
        forms = [self.form(name) for name in (*inputs, *outputs)]
        rate = next((form.rate for form in forms if form.rate), "float32")
        return Work(self._flops(node), sum(form.bytes for form in forms), rate)

    def _flops(self, node: Any) -> int:
        """Two for each product that is added up."""
        shapes = [self.form(name).shape if name else () for name in node.input]
        if node.op_type in ("MatMul", "Gemm", "FusedMatMul"):
            transposed = any(one.name == "transA" and one.i for one in node.attribute)
            inner = shapes[0][-2 if transposed and len(shapes[0]) > 1 else -1]
            return 2 * inner * prod(self.form(node.output[0]).shape)
        if node.op_type == "Conv":
            return 2 * prod(self.form(node.output[0]).shape) * prod(shapes[1][1:])
        if node.op_type == "ConvTranspose":
            return 2 * prod(shapes[0]) * prod(shapes[1][1:])
        if node.op_type == "ConvGrad":
            wanted = sum(bool(name) for name in node.output[:2])
            return 2 * wanted * prod(shapes[0]) * prod(shapes[2][1:])
        return 0

    def _name(self, node: Any) -> str:
        name = node.name or f"{node.op_type}.{len(self.rows)}"
        while name in self.names:
            name = f"{name}.{len(self.rows)}"
        self.names.add(name)
        return name

    def _form(self, written: Any) -> Form | None:
        """None where a dimension is no number."""
        known = written.HasField("shape") and all(
            one.HasField("dim_value") and one.dim_value >= 0 for one in written.shape.dim
        )
        return (
            self._of(written.elem_type, tuple(one.dim_value for one in written.shape.dim)) if known else None
        )

    def _of(self, elem_type: int, shape: tuple[int, ...]) -> Form:
        if min(shape, default=0) < 0:
            raise ValueError(f"a tensor has a dimension of {min(shape)}")
        try:
            size = self.onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize
        except KeyError:
            raise ValueError(f"a tensor has the type {elem_type}, which onnx does not know") from None
        return Form(shape, size * prod(shape), RATES.get(self.onnx.TensorProto.DataType.Name(elem_type)))

    def _is_number(self, name: str) -> bool:
        form = self.forms.get(name)
        return form is not None and prod(form.shape) == 1
