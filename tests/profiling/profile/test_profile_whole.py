"""A whole profile: the graph, where it comes from, and the verdict of the comparison with eager."""

import pytest
import torch
from iterations import EXAMPLES, example
from memplan.devices.device.cpu import Cpu
from memplan.graphs.errors import DifferenceError, InputError
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.files.validate import validate
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare import verdict as verdicts
from memplan.profiling.compare.comparison import Comparison
from memplan.profiling.profile.profile import profile
from memplan.program.graph import Cost, graph_of
from memplan.tracing.trace import trace

MODEL = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)), (torch.ones(4, 8),), torch.sum
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text(MODEL)
    return str(path)


def test_a_profile_says_where_it_comes_from_and_how_good_it_is(model, tmp_path):
    graph = profile(model)
    validate(graph)
    source = graph.source
    assert (graph.name, source["model"], source["entry"]) == ("tiny", model, "build")
    assert (source["kind"], source["device"], source["threads"]) == ("torch", "cpu", 1)
    assert source["torch"] == torch.__version__
    assert source["fingerprint"].startswith("sha256:")
    assert {key: source["eager"][key] for key in ("equal", "tensors")} == {"equal": True, "tensors": 4}
    assert source["eager"]["peak"] == pytest.approx(baseline(graph).peak, rel=0.01)
    assert source["eager"]["seconds"] > 0
    assert {*source["measured"]} - {"doubt"} == {
        "signatures",
        "spread",
        "spread_by_time",
        "off",
        "sum",
        "eager",
    }
    assert source["measured"]["sum"] == pytest.approx(graph.operations.time.sum())
    assert verdicts.warning(source["eager"]) is None
    save_graph(graph, tmp_path / "tiny.json")
    assert load_graph(tmp_path / "tiny.json").source == source


def test_what_libraries_keep_of_the_device_is_told(model, monkeypatch):
    assert "constant" not in profile(model).source
    monkeypatch.setattr(Cpu, "constant_bytes", lambda _: 2**23)
    assert profile(model).source["constant"] == 2**23


def test_two_profiles_differ_in_times_alone(model):
    one, two = profile(model), profile(model)
    assert one.source["fingerprint"] == two.source["fingerprint"]
    assert one.operations.name == two.operations.name
    assert one.operations.workspace.tolist() == two.operations.workspace.tolist()
    assert one.tensors.bytes.tolist() == two.tensors.bytes.tolist()


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["bert", "vit", "unet"])
def test_an_example_is_equal_to_eager_and_its_times_add_up(name):
    graph = profile(str(EXAMPLES / f"{name}.py"))
    validate(graph)
    assert graph.source["eager"]["equal"] is True
    assert graph.source["measured"]["signatures"] < len(graph.operations) / 2
    figures = simulate(graph, baseline_schedule(graph)).figures
    assert figures.time == pytest.approx(graph.operations.time.sum())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("comparison", "eager", "words"),
    [
        (Comparison(None, 0.0, 9), {"equal": True, "tensors": 9}, None),
        (
            Comparison(None, 0.0, 9, compiling=True, apart="loss by up to 0.5"),
            {"equal": True, "tensors": 9, "compiling": True, "apart": "loss by up to 0.5"},
            "differ from eager PyTorch's (loss by up to 0.5)",
        ),
        (
            Comparison(None, 0.0, 9, checkpoints_off=True),
            {"equal": True, "tensors": 9, "checkpoints_off": True},
            "own checkpoints",
        ),
        (
            Comparison(None, 0.0, 9, spreads=(("loss", 1e-6),)),
            {"equal": True, "tensors": 9, "spread": 1e-6},
            "up to 1e-06",
        ),
        (MemoryError(), {"equal": None}, "not compared"),
        (RuntimeError("CPUAllocator: can't allocate memory: you tried"), {"equal": None}, "not compared"),
    ],
    ids=[
        "equal",
        "compiling",
        "checkpoints off",
        "spread",
        "no memory",
        "no memory, as the allocator says it",
    ],
)
def test_the_verdict_is_in_the_source_and_in_one_line(monkeypatch, comparison, eager, words):
    def compare(_iteration, _step, _left):
        if isinstance(comparison, Exception):
            raise comparison
        return comparison

    monkeypatch.setattr(verdicts, "compare", compare)
    iteration = example("mlp")
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    assert verdicts.verdict(iteration, program, graph) == eager
    line = verdicts.warning(eager)
    assert line is None if words is None else words in line


def test_a_graph_file_of_an_older_version_keeps_its_warning():
    now, before = ({"equal": True, key: True} for key in ("checkpoints_off", "plain"))
    assert verdicts.warning(before) == verdicts.warning(now) is not None


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (Comparison("w", 1e-6, 9), "w differs from eager by up to 1e-06"),
        (
            Comparison("b", float("nan"), 9, suspects=("it draws", "it counts")),
            r"b .* \(suspects: it draws; it counts\)",
        ),
    ],
    ids=["by a number", "not by a number"],
)
def test_a_trace_that_is_not_the_model_s_is_an_error(monkeypatch, comparison, words):
    monkeypatch.setattr(verdicts, "compare", lambda *_, **_named: comparison)
    iteration = example("mlp")
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    with pytest.raises(DifferenceError, match=words):
        verdicts.verdict(iteration, program, graph)


def test_another_fault_of_the_comparison_is_not_hidden(monkeypatch):
    def compare(_iteration, _step, _left):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(verdicts, "compare", compare)
    iteration = example("mlp")
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    with pytest.raises(RuntimeError, match="shapes differ"):
        verdicts.verdict(iteration, program, graph)


@pytest.mark.parametrize("device", ["tpu", "cuda" if not torch.cuda.is_available() else "xpu"])
def test_a_device_that_is_not_there_is_one_line(model, device):
    with pytest.raises(InputError) as error:
        profile(model, device)
    assert "\n" not in str(error.value)
