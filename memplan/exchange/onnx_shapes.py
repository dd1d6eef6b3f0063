"""Shapes and dtypes of an ONNX graph's tensors, and values that follow from shapes alone.

ONNX's own operators go through its inference, onnxruntime's for training through the rules below. Values that
are computed from shapes alone are computed here, as onnxruntime does it.

Each node is visited once, in the file's order, with the values that are known by then: the sizes that a
Reshape or an Expand takes. Only small arrays are computed, by the operators in `_COMPUTED`.

Reference: onnxruntime, docs/ContribOperators.md and orttraining/core/graph/training_op_defs.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MOST_VALUES = 1024
"""Elements of an array whose values are computed: sizes and indices, not data."""

FLOAT, INT64, BOOL, UINT32 = 1, 7, 9, 12
"""onnx.TensorProto.DataType"""


class Form(NamedTuple):
    """Dtype and shape of a tensor. type: a TensorProto.DataType."""

    type: int
    shape: tuple[int, ...]


class Shapes:
    """Forms and values of a graph's tensors, as far as they are known.

    forms: dtype and shape by name.
    values: small arrays that follow from shapes, by name.
    """

    def __init__(self, onnx: Any, model: Any) -> None:
        """Take over what the model says.

        model: after ONNX's inference of the whole graph. Raises ValueError.
        """
        self._onnx = onnx
        self._opsets = {one.domain: one.version for one in model.opset_import}
        self._imports = list(model.opset_import)
        self.forms: dict[str, Form] = {}
        self.values: dict[str, Array] = {}
        graph = model.graph
        for info in (*graph.input, *graph.value_info, *graph.output):
            self._know(info.name, info.type)
        for one in graph.initializer:
            self.forms[one.name] = Form(one.data_type, tuple(one.dims))
            # External data is in other files, which are not read.
            if prod(one.dims) <= MOST_VALUES and one.data_location != onnx.TensorProto.EXTERNAL:
                self._value(one.name, lambda one=one: onnx.numpy_helper.to_array(one))

    def take(self, node: Any) -> None:
        """Infer shapes, and values if possible, of a node's results."""
        given = [self.forms.get(name) for name in node.input]
        attributes = {one.name: self._onnx.helper.get_attribute_value(one) for one in node.attribute}
        values = [self.values.get(name) for name in node.input]
        if (rule := RULES.get(node.op_type)) is not None:
            try:
                found = rule(_Call(given, values, attributes, len(node.output)))
            except (IndexError, TypeError, ValueError, AttributeError):  # inputs are missing, or unknown
                found = ()
            for name, form in zip(node.output, found, strict=False):
                if name and form is not None:
                    self.forms[name] = form
        elif any(name and name not in self.forms for name in node.output):
            self._infer(node)
        # ONNX's own operators alone: those of other domains may have the same names.
        if node.op_type in _COMPUTED and not node.domain:
            self._compute(node, given, values, attributes)

    def _infer(self, node: Any) -> None:
        """Infer shapes by ONNX's rule for the operator; what it does not know stays unknown."""
        helper, inference = self._onnx.helper, self._onnx.shape_inference
        types = {
            name: helper.make_tensor_type_proto(*self.forms[name])
            for name in node.input
            if name in self.forms
        }
        data = {
            name: self._onnx.numpy_helper.from_array(self.values[name], name)
            for name in node.input
            if name in self.values
        }
        try:
            schema = self._onnx.defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain)
            found = inference.infer_node_outputs(schema, node, types, data, opset_imports=self._imports)
        except Exception:  # no such operator, or inputs that do not fit: its results stay unknown
            return
        for name, kind in found.items():
            self._know(name, kind)

    def _compute(
        self, node: Any, given: Sequence[Form | None], values: Sequence[Array | None], attributes: Any
    ) -> None:
        name = node.output[0]
        form = self.forms.get(name)
        if form is None or prod(form.shape) > MOST_VALUES:
            return
        of_forms = node.op_type in ("Shape", "Size")
        # Shape and Size need only the form of their input, all others its values.
        if (given[0] if given else None) is None if of_forms else any(one is None for one in values):
            return
        inputs: Sequence[Any] = [one.shape for one in given if one] if of_forms else values
        self._value(name, lambda: _COMPUTED[node.op_type](self._onnx, inputs, attributes))
        # Another shape than inferred: the operator has a case that is not computed here.
        if name in self.values and self.values[name].shape != form.shape:
            del self.values[name]

    def _value(self, name: str, compute: Callable[[], Array]) -> None:
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(compute())
        except Exception:  # values that do not fit the operator: the result stays unknown
            return
        if found.dtype.kind in "biuf":  # bool, int, uint, float
            self.values[name] = found

    def _know(self, name: str, kind: Any) -> None:
        written = kind.tensor_type
        if not (kind.HasField("tensor_type") and written.HasField("shape") and written.elem_type):
            return
        if all(one.HasField("dim_value") and one.dim_value >= 0 for one in written.shape.dim):
            shape = tuple(one.dim_value for one in written.shape.dim)
            self.forms[name] = Form(written.elem_type, shape)


# ── onnxruntime's operators ─────────────────────────────────────────────────────────────────────────


class _Call(NamedTuple):
    inputs: Sequence[Form | None]
    values: Sequence[Array | None]
    attributes: Mapping[str, Any]
    outputs: int


Rule = Callable[[_Call], Sequence[Form | None]]


def _like(*places: int) -> Rule:
    """Return the rule that each result has the form of an input. places: indices of the inputs."""
    return lambda call: [call.inputs[place] for place in places[: call.outputs]]


def _of_size_in(sizes: int, like: int) -> Rule:
    """Return the rule that the shape is the value of one input, and the dtype that of another."""

    def rule(call: _Call) -> Sequence[Form | None]:
        shape, form = call.values[sizes], call.inputs[like]
        return () if shape is None or form is None else [Form(form.type, tuple(map(int, shape)))]

    return rule


def _normalized(*extra: int) -> Rule:
    """Return the rule of normalizations: the input's form, then those of means and deviations, then inputs'.

    Means and deviations are in float32 unless the file says otherwise. extra: indices of the inputs that
    follow.
    """

    def rule(call: _Call) -> Sequence[Form | None]:
        x = call.inputs[0]
        if x is None:
            return ()
        # range gives a negative axis its index, and refuses one outside.
        axis = range(len(x.shape))[call.attributes.get("axis", -1)]
        shape = (*x.shape[:axis], *(1 for _length in x.shape[axis:]))
        statistics = Form(call.attributes.get("stash_type", FLOAT), shape)
        return [x, statistics, statistics, *(call.inputs[place] for place in extra)]

    return rule


def _product(call: _Call) -> Sequence[Form | None]:
    """Return the form of a FusedMatMul.

    trans swaps the last two dimensions, transBatch moves the first one after the batch.
    """
    a, b = call.inputs[:2]
    if a is None or b is None:
        return ()
    shapes = [list(a.shape), list(b.shape)]
    for shape, letter in zip(shapes, "AB", strict=True):
        if call.attributes.get(f"transBatch{letter}"):
            shape.insert(len(shape) - 2, shape.pop(0))
        if call.attributes.get(f"trans{letter}") and len(shape) > 1:
            shape[-2:] = shape[:-3:-1]  # the last two, reversed
    first, second = shapes
    batch = np.broadcast_shapes(tuple(first[:-2]), tuple(second[:-2]))
    rows = first[-2:-1]
    columns = second[-1:] if len(second) > 1 else []
    return [Form(a.type, (*batch, *rows, *columns))]


def _loss(call: _Call) -> Sequence[Form | None]:
    scores, labels = call.inputs[:2]
    # The helper gives texts as bytes.
    each = call.attributes.get("reduction", b"mean") in (b"none", "none")
    if scores is None or (each and labels is None):
        return ()
    return [Form(scores.type, labels.shape if each and labels else ()), scores]


def _filters(call: _Call) -> Sequence[Form | None]:
    """Return the forms of a convolution's gradients: input, weights, and bias.

    The bias has an element per channel of the result.
    """
    result, x, weights = call.inputs[:3]
    bias = None if result is None or weights is None else Form(weights.type, result.shape[1:2])
    return [x, weights, bias]


def _sum(call: _Call) -> Sequence[Form | None]:
    x, axes = call.inputs[0], call.values[1]
    if x is None or axes is None:
        return ()
    summed = {range(len(x.shape))[int(axis)] for axis in np.ravel(axes)}
    keep = call.attributes.get("keepdims", 1)
    shape = [1 if place in summed else n for place, n in enumerate(x.shape) if keep or place not in summed]
    return [Form(x.type, tuple(shape))]


def _joined(call: _Call) -> Sequence[Form | None]:
    forms = [form for form in call.inputs if form is not None]
    if len(forms) < len(call.inputs):
        return ()
    axis = range(len(forms[0].shape))[call.attributes["axis"]]
    shape = list(forms[0].shape)
    shape[axis] = sum(form.shape[axis] for form in forms)
    return [Form(forms[0].type, tuple(shape)), Form(INT64, (len(forms),))]


def _masked(call: _Call) -> Sequence[Form | None]:
    x = call.inputs[0]
    return () if x is None else [x, Form(BOOL, x.shape)]


def _bits(call: _Call) -> Sequence[Form | None]:
    x = call.inputs[0]
    return () if x is None else [x, Form(UINT32, (-(-prod(x.shape) // 32),))]


def _first(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, Rule] = {
    **_first(
        "ReluGrad SigmoidGrad TanhGrad GeluGrad FastGeluGrad QuickGeluGrad LeakyReluGrad EluGrad "
        "BiasGeluGrad_dX BiasFastGeluGrad_dX SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13 "
        "DropoutGrad BitmaskDropoutGrad Scale BiasGelu FastGelu QuickGelu BiasSoftmax RotaryEmbedding "
        "ZeroGradient PassThrough InPlaceAccumulator MixedPrecisionScale",
        _like(0),
    ),
    **_first(
        "SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad SoftmaxCrossEntropyGrad "
        "SparseSoftmaxCrossEntropyGrad ResizeGrad",
        _like(1),
    ),
    "LayerNormalization": _normalized(),
    "SimplifiedLayerNormalization": _normalized(),
    "SkipLayerNormalization": _normalized(0),
    "SkipSimplifiedLayerNormalization": _normalized(0),
    "LayerNormalizationGrad": _like(1, 2, 2),
    "InvertibleLayerNormalizationGrad": _like(1, 2, 3),
    "SimplifiedLayerNormalizationGrad": _like(1, 2),
    "BatchNormInternal": _like(0, 3, 4, 1, 1),
    "BatchNormalizationGrad": _like(1, 2, 2),
    "DivGrad": _like(1, 2),
    "ConvGrad": _filters,
    "ConvTransposeGrad": _filters,
    "SoftmaxCrossEntropyLossInternal": _loss,
    "FusedMatMul": _product,
    "TransposeMatMul": _product,
    "GatherGrad": _of_size_in(0, 2),
    "GatherNDGrad": _of_size_in(0, 2),
    "GatherElementsGrad": _of_size_in(1, 0),
    "SliceGrad": _of_size_in(1, 0),
    "ReduceSumTraining": _sum,
    "ConcatTraining": _joined,
    "BiasDropout": _masked,
    "BitmaskDropout": _bits,
    "BitmaskBiasDropout": _bits,
    "InPlaceAccumulatorV2": lambda _call: [Form(BOOL, (1,))],
    "ReduceAllL2": lambda _call: [Form(FLOAT, ())],
    "IsAllFinite": lambda _call: [Form(BOOL, ())],
}
"""Rules by operator. Those that ONNX has in newer versions are here too, for files in older ones."""


# ── what is computed from shapes ────────────────────────────────────────────────────────────────────


def _constant(onnx: Any, _inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    name, value = next(iter(attributes.items()))
    return onnx.numpy_helper.to_array(value) if name == "value" else np.asarray(value)


def _cast(onnx: Any, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return inputs[0].astype(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))


def _axes(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the axes: an input since opset 13, an attribute before."""
    return tuple(int(axis) for axis in (inputs[1] if len(inputs) > 1 else attributes.get("axes", ())))


def _slice(_onnx: Any, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    names = ("starts", "ends", "axes", "steps")
    parts = [list(map(int, part)) for part in inputs[1:]] or [
        list(attributes[name]) for name in names if name in attributes
    ]
    starts, ends = parts[:2]
    axes = parts[2] if len(parts) > 2 else list(range(len(starts)))
    steps = parts[3] if len(parts) > 3 else [1] * len(starts)
    places = [slice(None)] * inputs[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # A step below 0 with the least int32 (or less) as end goes on to the first element.
        places[axis] = slice(start, end if end > -(2**31) or step > 0 else None, step)
    return inputs[0][tuple(places)]


def _divided(a: Array, b: Array) -> Array:
    """Divide, toward zero for whole numbers."""
    # NumPy's // would round down.
    return np.trunc(a / b).astype(a.dtype) if a.dtype.kind in "iu" else a / b


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _onnx, inputs, _attributes: function(*inputs)


def _over(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(_onnx: Any, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        # Without axes over all.
        axes = _axes(inputs, attributes) or None
        return function(inputs[0], axis=axes, keepdims=bool(attributes.get("keepdims", 1)))

    return run


def _reshaped(_onnx: Any, inputs: Sequence[Array], _attributes: Mapping[str, Any]) -> Array:
    # 0 keeps the input's size.
    shape = [inputs[0].shape[place] if n == 0 else int(n) for place, n in enumerate(inputs[1])]
    return inputs[0].reshape(shape)


def _squeezed(_onnx: Any, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return np.squeeze(inputs[0], _axes(inputs, attributes) or None)


_COMPUTED: dict[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    "Constant": _constant,
    "Shape": lambda _onnx, shapes, attributes: np.array(
        shapes[0][attributes.get("start", 0) : attributes.get("end", len(shapes[0]))], np.int64
    ),
    "Size": lambda _onnx, shapes, _attributes: np.array(prod(shapes[0]), np.int64),
    "Cast": _cast,
    "Slice": _slice,
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "Unsqueeze": lambda _onnx, inputs, attributes: np.expand_dims(inputs[0], _axes(inputs, attributes)),
    "Gather": lambda _onnx, inputs, attributes: np.take(inputs[0], inputs[1], attributes.get("axis", 0)),
    "Concat": lambda _onnx, inputs, attributes: np.concatenate(inputs, attributes["axis"]),
    "ConstantOfShape": lambda onnx, inputs, attributes: np.full(
        [int(n) for n in inputs[0]],
        onnx.numpy_helper.to_array(attributes["value"])[0] if "value" in attributes else np.float32(0),
    ),
    "Expand": _plain(
        lambda x, sizes: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(map(int, sizes))))
    ),
    "Range": _plain(lambda start, limit, delta: np.arange(start, limit, delta)),
    "Identity": _plain(np.asarray),
    "Add": _plain(np.add),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Div": _plain(_divided),
    "Mod": _plain(np.mod),
    "Neg": _plain(np.negative),
    "Floor": _plain(np.floor),
    "Ceil": _plain(np.ceil),
    "Sqrt": _plain(np.sqrt),
    "Min": _plain(lambda *inputs: np.minimum.reduce(np.broadcast_arrays(*inputs))),
    "Max": _plain(lambda *inputs: np.maximum.reduce(np.broadcast_arrays(*inputs))),
    "Equal": _plain(np.equal),
    "Less": _plain(np.less),
    "Greater": _plain(np.greater),
    "Not": _plain(np.logical_not),
    "And": _plain(np.logical_and),
    "Or": _plain(np.logical_or),
    "Where": _plain(np.where),
    "ReduceProd": _over(np.prod),
    "ReduceSum": _over(np.sum),
    "ReduceMax": _over(np.max),
    "ReduceMin": _over(np.min),
}
"""Functions by ONNX's operator.

They take onnx, the inputs' values (shapes, for Shape and Size), attributes.
"""
