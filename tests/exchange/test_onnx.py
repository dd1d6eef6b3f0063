"""ONNX training graphs: a layer by hand, in the names of onnxruntime's; figures in closed form; refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.exchange.formats import Options, read
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machines.presets import find_preset
from memplan.planner.baseline import baseline
from memplan.profiling.profile.roofline import Work, seconds
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve

onnx: Any = pytest.importorskip("onnx")
BATCH, WIDTH = 32, 16
GPU = Options(gpu="rtx3060")


def model(nodes: list[Any] | None = None, batch: Any = BATCH, outputs: list[str] | None = None) -> Any:
    """x @ w, ReLU, a reshape and its mean; backward as onnxruntime writes it."""
    make, number = onnx.helper.make_node, onnx.TensorProto.FLOAT

    def info(name: str, shape: list[Any]) -> Any:
        return onnx.helper.make_tensor_value_info(name, number, shape)

    own = {"domain": "com.microsoft"}
    nodes = nodes or [
        make("MatMul", ["x", "w"], ["h"], name="/fc/MatMul"),
        make("Relu", ["h"], ["a"], name="relu"),
        make("Flatten", ["a"], ["f"], name="flat"),
        make("ReduceMean", ["f"], ["loss"], name="mean", keepdims=0),
        make("ReduceMeanGrad", ["loss", "a"], ["a_grad"], name="mean_grad", **own),
        make("ReluGrad", ["a_grad", "a"], ["h_grad"], name="relu_grad", **own),
        make("FusedMatMul", ["x", "h_grad"], ["w_grad"], name="fc_grad", transA=1, **own),
        make("InPlaceAccumulatorV2", ["w_sum", "w_grad"], ["done"], name="sum", **own),
    ]
    weights = onnx.helper.make_tensor("w", number, [WIDTH, WIDTH], [0.0] * WIDTH**2)
    made = onnx.helper.make_graph(
        nodes,
        "layer",
        [info("x", [batch, WIDTH]), info("w_sum", [WIDTH, WIDTH])],
        [info(name, []) for name in outputs or ["loss", "done"]],
        [weights],
    )
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(made, opset_imports=opsets)


def imported(value: Any, folder: Path) -> Graph:
    (folder / "m.onnx").write_bytes(value.SerializeToString())
    return read("onnx", folder / "m.onnx", GPU)


def test_sizes_phases_and_views(tmp_path: Path) -> None:
    graph = imported(model(), tmp_path)
    names = ["/fc/MatMul", "relu", "mean", "mean_grad", "relu_grad", "fc_grad", "sum"]
    assert list(graph.operations.name) == names
    phases = [Phase(int(phase)).word for phase in graph.operations.phase]
    assert phases == ["forward", "forward", "loss", "backward", "backward", "backward", "update"]
    kinds = {graph.tensors.name[k]: graph.tensor(k).kind for k in range(len(graph.tensors))}
    assert (kinds["x"], kinds["w"], kinds["w_sum"]) == (Kind.INPUT, Kind.PARAMETER, Kind.BUFFER)
    assert (kinds["h_grad"], kinds["w_grad"]) == (Kind.GRADIENT, Kind.PARAMETER_GRADIENT)
    assert "f" not in kinds
    layer, weight = BATCH * WIDTH * 4, WIDTH * WIDTH * 4
    resident = layer + 2 * weight  # x, w, w_sum
    assert graph.resident_bytes == resident
    at_relu_grad = 3 * layer + 4  # a, a_grad, h_grad, and the loss, which stays
    assert baseline(graph).peak == resident + at_relu_grad


def test_times_are_the_roofline_s(tmp_path: Path) -> None:
    graph = imported(model(), tmp_path)
    gpu = find_preset("rtx3060").gpu
    flops = 2 * BATCH * WIDTH * WIDTH
    moved = 4 * (2 * BATCH * WIDTH + WIDTH * WIDTH)
    product = seconds(Work(flops, moved, "float32", "product"), gpu)
    times = dict(zip(graph.operations.name, graph.operations.time.tolist(), strict=True))
    assert times["/fc/MatMul"] == times["fc_grad"] == pytest.approx(product)
    assert times["relu"] == pytest.approx(seconds(Work(0, 2 * 4 * BATCH * WIDTH, "float32"), gpu))


def test_a_product_that_is_bound_by_its_flops(tmp_path: Path) -> None:
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    n, half = 4096, onnx.TensorProto.FLOAT16
    ends = [info(name, half, [n, n]) for name in "abc"]
    graph = onnx.helper.make_graph([make("MatMul", ["a", "b"], ["c"])], "one", ends[:2], ends[2:])
    found = imported(onnx.helper.make_model(graph), tmp_path)
    work = Work(2 * n**3, 3 * 2 * n * n, "float16", "product")
    assert found.operations.time.tolist() == pytest.approx([seconds(work, find_preset("rtx3060").gpu)])


def test_a_solved_schedule_and_the_file_again(tmp_path: Path) -> None:
    graph = imported(model(), tmp_path)
    save_graph(graph, tmp_path / "g.yaml")
    recomputed = load_graph(tmp_path / "g.yaml")
    assert graph_digest(recomputed) == graph_digest(graph)
    plain = baseline(recomputed)
    found = solve("store-all", Problem(recomputed, plain.peak), bound_seconds=0)
    assert (found.figures.time, found.figures.peak) == (plain.time, plain.peak)


def faults() -> dict[str, tuple[Any, str]]:
    make = onnx.helper.make_node
    branch = onnx.helper.make_graph([make("Identity", ["x"], ["y"])], "b", [], [])
    return {
        "batch": (model(batch="batch"), "give them, as --dim"),
        "own": (
            model([make("Mine", ["x"], ["y"], domain="com.microsoft")], outputs=["loss"]),
            "the size of 'y'",
        ),
        "nobody": (
            model([make("Relu", ["no"], ["y"])], outputs=["loss"]),
            "reads 'no', which nobody has made",
        ),
        "loop": (
            model([make("If", ["x"], ["y"], then_branch=branch, else_branch=branch)], outputs=["loss"]),
            "graphs of its own",
        ),
        "empty": (onnx.ModelProto(), "is not an ONNX model"),
        "negative": (model(batch=-4), "give them, as --dim"),
        "twice": (
            model([make("Relu", ["x"], ["y"]), make("Relu", ["y"], ["y"])], outputs=["loss"]),
            "makes 'y', which is there already",
        ),
        "type": (of_type(77), "a tensor has the type 77, which onnx does not know"),
    }


def of_type(number: int) -> Any:
    made = model()
    made.graph.initializer[0].data_type = number
    return made


@pytest.mark.parametrize("name", ["batch", "own", "nobody", "loop", "empty", "negative", "twice", "type"])
def test_faults_are_one_line(name: str, tmp_path: Path) -> None:
    value, words = faults()[name]
    (tmp_path / "m.onnx").write_bytes(value.SerializeToString())
    result = CliRunner().invoke(main, ["import", "onnx", str(tmp_path / "m.onnx"), "--gpu", "rtx3060"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert words in result.stderr


def test_no_model_no_gpu_and_no_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"hello")
    with pytest.raises(InputError, match=r"m\.onnx: is not an ONNX model"):
        read("onnx", path, GPU)
    with pytest.raises(InputError, match="--gpu NAME"):
        read("onnx", path, Options())
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = CliRunner().invoke(main, ["import", "onnx", str(path), "--gpu", "rtx3060"])
    assert (
        result.stderr == "plan: error: this needs onnx, which is not installed: pip install 'memplan[onnx]'\n"
    )
