"""Sizes in ONNX graphs: dimensions that are given, onnxruntime's operators, what is computed from shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.exchange import onnx_shapes
from memplan.exchange.formats import Options, read
from memplan.exchange.onnx_shapes import Form, Shapes
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline

onnx: Any = pytest.importorskip("onnx")
FLOAT, INT64, BOOL = 1, 7, 9
WIDTH, HEADS = 16, 4


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """`.` in front: one of onnxruntime's."""
    domain = {"domain": "com.microsoft"} if kind[0] == "." else {}
    given = [name.replace("-", "") for name in inputs.split()]
    return onnx.helper.make_node(kind.lstrip("."), given, outputs.split(), **domain, **attributes)


def model(
    nodes: list[Any],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    fixed: dict[str, Any] | None = None,
    opset: int = 14,
) -> Any:
    def infos(forms: dict[str, list[Any]]) -> list[Any]:
        types = {name: INT64 if name in ("labels", "tokens") else FLOAT for name in forms}
        return [onnx.helper.make_tensor_value_info(name, types[name], forms[name]) for name in forms]

    values = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (fixed or {}).items()]
    graph = onnx.helper.make_graph(nodes, "g", infos(inputs), infos(outputs), values)
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=imports)


def imported(value: Any, folder: Path, **dims: int) -> Graph:
    (folder / "m.onnx").write_bytes(value.SerializeToString())
    return read("onnx", folder / "m.onnx", Options(gpu="rtx3060", dims=dims or None))


def sizes(graph: Graph) -> dict[str, int]:
    return dict(zip(graph.tensors.name, graph.tensors.bytes.tolist(), strict=True))


def training(batch: Any = "batch_size") -> Any:
    """A block as onnxruntime's artifacts have it, opset 14: LayerNormalization with its statistics, heads by
    shapes that are computed, products that transpose, dropout, and all their gradients."""
    w, rows = WIDTH, [batch, 8, WIDTH]
    heads = [0, 8, HEADS, WIDTH // HEADS]
    nodes = [
        node("LayerNormalization", "x scale bias", "n mean inv", epsilon=1e-5),
        node("MatMul", "n w", "q"),
        node("Shape", "q", "q_shape"),
        node("Gather", "q_shape zero", "rows"),
        node("Unsqueeze", "rows axes", "rows1"),
        node("Concat", "rows1 rest", "heads", axis=0),
        node("Reshape", "q heads", "q4"),
        node("Transpose", "q4", "qt", perm=[0, 2, 1, 3]),
        node(".FusedMatMul", "qt qt", "scores", transB=1, alpha=0.5),
        node("Softmax", "scores", "p", axis=-1),
        node("Dropout", "p ratio training", "pd mask"),
        node("MatMul", "pd qt", "o"),
        node("Reshape", "o flat", "of"),
        node(".SoftmaxCrossEntropyLossInternal", "of labels", "loss logp", reduction="mean"),
        node(".SoftmaxCrossEntropyLossInternalGrad", "one logp labels", "of_grad"),
        node("Shape", "o", "o_shape"),
        node("Reshape", "of_grad o_shape", "o_grad"),
        node(".FusedMatMul", "o_grad qt", "pd_grad", transB=1),
        node(".DropoutGrad", "pd_grad mask ratio training", "p_grad"),
        node(".SoftmaxGrad_13", "p_grad p", "scores_grad", axis=-1),
        node(".FusedMatMul", "scores_grad qt", "qt_grad", alpha=0.5),
        node("Transpose", "qt_grad", "q4_grad", perm=[0, 2, 1, 3]),
        node("Reshape", "q4_grad q_shape", "q_grad"),
        node(".FusedMatMul", "q_grad w", "n_grad", transB=1),
        node(".LayerNormalizationGrad", "n_grad x scale mean inv", "x_grad scale_grad bias_grad", axis=-1),
        node(".InPlaceAccumulatorV2", "scale_sum scale_grad", "done"),
    ]
    inputs: dict[str, list[Any]] = {"x": rows, "labels": [f"{batch}8"], "scale_sum": [w]}
    if isinstance(batch, int):
        inputs["labels"] = [batch * 8 * HEADS * w // HEADS // w]
    fixed = {
        "scale": np.ones(w, np.float32),
        "bias": np.ones(w, np.float32),
        "w": np.ones((w, w), np.float32),
        "zero": np.array(0),
        "axes": np.array([0]),
        "rest": np.array(heads[1:]),
        "flat": np.array([-1, w]),
        "ratio": np.float32(0.1),
        "training": np.array(True),
        "one": np.float32(1),
    }
    return model(nodes, inputs, {"loss": [], "done": [1]}, fixed)


def test_sizes_of_a_training_graph_whose_batch_is_given(tmp_path: Path) -> None:
    graph = imported(training(), tmp_path, batch_size=2, batch_size8=16)
    found = sizes(graph)
    rows, scores = 2 * 8 * WIDTH * 4, 2 * HEADS * 8 * 8 * 4
    expected = {"mean": 2 * 8 * 4, "inv": 2 * 8 * 4, "n": rows, "q": rows, "qt": rows, "o": rows}
    expected |= {"scores": scores, "p": scores, "mask": scores // 4, "loss": 4, "logp": rows, "of_grad": rows}
    expected |= {"pd_grad": scores, "p_grad": scores, "scores_grad": scores, "qt_grad": rows, "n_grad": rows}
    expected |= {"x_grad": rows, "scale_grad": WIDTH * 4, "bias_grad": WIDTH * 4, "done": 1}
    assert {name: found[name] for name in expected} == expected
    assert not {"q_shape", "rows", "rows1", "heads", "q4", "o_shape", "of"} & found.keys()
    assert not any(
        name.startswith(("Shape", "Gather", "Unsqueeze", "Concat")) for name in graph.operations.name
    )


def test_a_given_batch_is_as_one_in_the_file(tmp_path: Path) -> None:
    given, fixed = (
        imported(training(), tmp_path, batch_size=4, batch_size8=32),
        imported(training(4), tmp_path),
    )
    assert sizes(given) == sizes(fixed)
    assert baseline(given) == baseline(fixed)
    assert baseline(given).peak > baseline(imported(training(2), tmp_path)).peak


def test_a_size_that_is_missing_or_too_many_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="'batch_size' of 'x', 'batch_size8' of 'labels'; give them, as --dim b"
    ):
        imported(training(), tmp_path)
    with pytest.raises(InputError, match="'batch_size8' of 'labels'; give them, as --dim batch_size8=8"):
        imported(training(), tmp_path, batch_size=8)
    with pytest.raises(
        InputError, match=r"--dim rows=3: no input has this .*they have batch_size, batch_size8"
    ):
        imported(training(), tmp_path, rows=3)
    with pytest.raises(InputError, match=r"--dim batch_size=3: .*all of them have numbers"):
        imported(training(4), tmp_path, batch_size=3)
    with pytest.raises(InputError, match=r"--dim is not for moccasin: it is for onnx"):
        read("moccasin", tmp_path / "m.json", Options(dims={"a": 1}))


def test_the_option(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(training().SerializeToString())
    arguments = ["import", "onnx", str(path), "--gpu", "rtx3060"]
    given = ["--dim", "batch_size=2", "--dim", "batch_size8=16"]
    result = CliRunner().invoke(main, [*arguments, *given])
    assert result.exit_code == 0, result.stderr
    for wrong, line in {
        "batch_size": "is not NAME=SIZE, as batch_size=8",
        "batch_size=0": "is not NAME=SIZE",
        "batch_size=-1": "is not NAME=SIZE",
        "batch_size=٣": "is not NAME=SIZE",
        "batch_size=3": "batch_size is given as 2 and as 3",
    }.items():
        result = CliRunner().invoke(main, [*arguments, *given, "--dim", wrong])
        assert (result.exit_code, line in result.stderr) == (2, True), result.stderr


def test_a_dimension_without_a_name_is_given_by_its_place(tmp_path: Path) -> None:
    one = model([node("Relu", "x", "y")], {"x": [None, 4]}, {"y": [None, 4]})
    with pytest.raises(InputError, match=r"'x\.0' of 'x'; give them, as --dim x\.0=8"):
        imported(one, tmp_path)
    assert sizes(imported(one, tmp_path, **{"x.0": 3})) == {"x": 48, "y": 48}


def test_a_scaled_gradient_of_a_mean(tmp_path: Path) -> None:
    """As onnxruntime writes ReduceMean's: sizes of input and result, a Scale, an Expand."""
    nodes = [
        node("Sub", "x target", "d"),
        node("ReduceMean", "d", "loss", keepdims=0),
        node("Size", "d", "n"),
        node("Size", "loss", "m"),
        node("Div", "n m", "ratio"),
        node(".Scale", "one ratio", "l_Grad/Scaled_Grad", scale_down=1),
        node("Shape", "d", "d_shape"),
        node("Expand", "l_Grad/Scaled_Grad d_shape", "d_grad"),
    ]
    one = model(
        nodes,
        {"x": ["b", 10], "target": ["b", 10]},
        {"loss": [], "d_grad": ["b", 10]},
        {"one": np.float32(1)},
    )
    found = sizes(imported(one, tmp_path, b=6))
    assert found["l_Grad/Scaled_Grad"] == 4
    assert found["d_grad"] == 240


def test_what_depends_on_values_is_refused_with_its_maker(tmp_path: Path) -> None:
    one = model([node("NonZero", "x", "y")], {"x": [4]}, {"y": [1, None]})
    with pytest.raises(InputError, match="the size of 'y', which NonZero '' makes, is not known"):
        imported(one, tmp_path)
    other = model([node(".Mystery", "x", "y")], {"x": [4]}, {"y": []})
    other.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match=r"which Mystery '' makes, .*an operator that has no rule here"):
        imported(other, tmp_path)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    data = model([node("Relu", "x", "what")], {"x": [4]}, {"what": [4]}).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data.replace(b"what", b"wh\xfft"))
    with pytest.raises(InputError, match=r"m\.onnx: is not an ONNX model: "):
        read("onnx", tmp_path / "m.onnx", Options(gpu="rtx3060"))


def test_constants_and_large_shapes(tmp_path: Path) -> None:
    """A constant of data is a buffer; one that only says a size is nothing. Nothing large is computed."""
    data = onnx.numpy_helper.from_array(np.zeros((64, 64), np.float32))
    size = onnx.numpy_helper.from_array(np.array([1 << 20, 1 << 20]))
    nodes = [
        node("Constant", "", "c", value=data),
        node("Constant", "", "s", value=size),
        node("MatMul", "x c", "y"),
        node("Expand", "one s", "huge"),
        node("ReduceSum", "huge", "z", keepdims=0),
    ]
    one = model(nodes, {"x": [2, 64]}, {"y": [2, 64], "z": []}, {"one": np.float32(1)})
    graph = imported(one, tmp_path)
    found = sizes(graph)
    assert (found["c"], found["huge"], found["y"]) == (64 * 64 * 4, 4 << 40, 512)
    assert "s" not in found
    assert graph.resident_bytes == 64 * 64 * 4 + 512 + 4


# ── the rules, one by one ───────────────────────────────────────────────────────────────────────────

X, S = (2, 6, 8), (8,)
OWN: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, Any], list[tuple[int, ...]]]] = {
    "layer norm": ("LayerNormalization", {"x": X, "s": (6, 8)}, {"axis": 1}, [X, (2, 1, 1), (2, 1, 1)]),
    "rms norm": (".SimplifiedLayerNormalization", {"x": X, "s": S}, {}, [X, (2, 6, 1)]),
    "skip": (".SkipLayerNormalization", {"x": X, "y": X, "s": S}, {}, [X, (2, 6, 1), (2, 6, 1), X]),
    "rms norm's": (".SimplifiedLayerNormalizationGrad", {"g": X, "x": X, "s": S, "i": (2, 6, 1)}, {}, [X, S]),
    "gelu": (".BiasGelu", {"x": X, "s": S}, {}, [X]),
    "gelu's": (".BiasGeluGrad_dX", {"g": X, "x": X, "s": S}, {}, [X]),
    "dropout": (".BiasDropout", {"x": X, "s": S}, {}, [X, X]),
    "bits": (".BitmaskDropout", {"x": X}, {}, [X, (3,)]),
    "plain": (".FusedMatMul", {"a": (2, 3, 4), "b": (4, 5)}, {}, [(2, 3, 5)]),
    "both": (".FusedMatMul", {"a": (7, 4, 3), "b": (7, 5, 4)}, {"transA": 1, "transB": 1}, [(7, 3, 5)]),
    "batch": (".FusedMatMul", {"a": (3, 7, 4), "b": (7, 4, 5)}, {"transBatchA": 1}, [(7, 3, 5)]),
    "spread": (".FusedMatMul", {"a": (2, 1, 3, 4), "b": (6, 4, 5)}, {}, [(2, 6, 3, 5)]),
    "conv's": (".ConvGrad", {"g": (2, 5, 9, 9), "x": (2, 3, 9, 9), "w": (5, 3, 3, 3)}, {},
               [(2, 3, 9, 9), (5, 3, 3, 3), (5,)]),
    "loss": (".SoftmaxCrossEntropyLossInternal", {"x": (4, 9), "y": (4,)}, {"reduction": "none"},
             [(4,), (4, 9)]),
    "joined": (".ConcatTraining", {"x": (2, 3), "y": (2, 4)}, {"axis": -1}, [(2, 7), (2,)]),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_onnxruntimes_operators(name: str) -> None:
    kind, given, attributes, shapes = OWN[name]
    outputs = [f"out{place}" for place in range(len(shapes))]
    one = model(
        [node(kind, " ".join(given), " ".join(outputs), **attributes)],
        {each: list(shape) for each, shape in given.items()},
        {},
    )
    found = Shapes(onnx, one)
    found.take(one.graph.node[0])
    assert [found.forms[each].shape for each in outputs] == shapes


@pytest.mark.parametrize("kind", ["GatherGrad", "SliceGrad", "GatherElementsGrad"])
def test_a_gradient_whose_shape_is_an_input(kind: str) -> None:
    inputs = {"GatherGrad": "shape labels g"}.get(kind, "g shape labels")
    one = model(
        [node("Shape", "x", "shape"), node(f".{kind}", inputs, "x_grad")],
        {"x": [5, 4], "g": [2, 4], "labels": [2]},
        {},
    )
    found = Shapes(onnx, one)
    for each in one.graph.node:
        found.take(each)
    assert found.forms["x_grad"] == Form(FLOAT, (5, 4))


def test_a_sum_over_computed_axes() -> None:
    one = model(
        [node(".ReduceSumTraining", "x axes", "y", keepdims=0)],
        {"x": [5, 4, 3]},
        {},
        {"axes": np.array([-1, 0])},
    )
    found = Shapes(onnx, one)
    found.take(one.graph.node[0])
    assert found.forms["y"] == Form(FLOAT, (4,))


A, B = np.array([7, -3, 5], np.int64), np.array([2, 4, -1], np.int64)
COMPUTED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Gather", [A, np.array([2, 0])], {}),
    ("Gather", [A, np.array(1)], {"axis": 0}),
    ("Concat", [A, B], {"axis": 0}),
    ("Unsqueeze", [A, np.array([0, -1])], {}),
    ("Squeeze", [A[None], np.array([0])], {}),
    ("Squeeze", [A[None, :, None]], {}),
    ("Slice", [A, np.array([0]), np.array([2**62])], {}),
    ("Slice", [A, np.array([-1]), np.array([-(2**62)]), np.array([0]), np.array([-1])], {}),
    ("Slice", [A, np.array([-2]), np.array([-1])], {}),
    ("Cast", [np.array([1.7, -1.7], np.float32)], {"to": INT64}),
    ("Reshape", [A, np.array([0, -1])], {}),
    ("ConstantOfShape", [np.array([2, 2])], {}),
    ("Expand", [A, np.array([2, 1])], {}),
    ("Range", [np.array(1), np.array(9), np.array(3)], {}),
    *(
        (kind, [A, B], {})
        for kind in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Equal", "Less", "Greater")
    ),
    ("Div", [A.astype(np.float32), B.astype(np.float32)], {}),
    ("Neg", [A], {}),
    ("Floor", [np.array([1.5, -1.5], np.float32)], {}),
    ("Ceil", [np.array([1.5, -1.5], np.float32)], {}),
    ("Sqrt", [np.array([4.0, 2.0], np.float32)], {}),
    ("And", [A > 0, B > 0], {}),
    ("Or", [A > 0, B > 0], {}),
    ("Not", [A > 0], {}),
    ("Where", [A > 0, A, B], {}),
    ("ReduceProd", [A], {"keepdims": 0}),
    ("ReduceProd", [A[None]], {"axes": [1]}),
    ("ReduceSum", [A[None], np.array([1])], {"keepdims": 0}),
    ("ReduceMax", [A], {}),
    ("ReduceMin", [A], {}),
    ("Identity", [A], {}),
]


@pytest.mark.parametrize("place", range(len(COMPUTED)), ids=[f"{c[0]}{i}" for i, c in enumerate(COMPUTED)])
def test_computed_values_are_those_of_the_reference(place: int) -> None:
    """ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    kind, inputs, attributes = COMPUTED[place]
    names = [f"i{number}" for number in range(len(inputs))]
    one = model(
        [node(kind, " ".join(names), "y", **attributes)], {}, {}, dict(zip(names, inputs, strict=True))
    )
    evaluator = ReferenceEvaluator(one.graph.node[0], opsets={"": 14})
    expected: Any
    (expected,) = evaluator.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))
    found = Shapes(onnx, one)
    found.take(one.graph.node[0])
    assert found.values["y"].dtype == expected.dtype
    np.testing.assert_array_equal(found.values["y"], expected)


def test_each_operator_that_is_computed_is_tested() -> None:
    tested = {kind for kind, _inputs, _attributes in COMPUTED} | {"Shape", "Size", "Constant"}
    assert onnx_shapes._COMPUTED.keys() == tested  # pyright: ignore[reportPrivateUsage]
