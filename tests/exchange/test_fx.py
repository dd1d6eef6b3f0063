"""Exported joint graphs: they compute what autograd computes, times are the trace's own, refusals."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.exchange.formats import Options, read
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machines.presets import find_preset
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline
from memplan.profiling.exported.joint import joint_of
from memplan.profiling.exported.values import argument
from memplan.profiling.profile.estimate import estimate_program
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.tracing.trace import trace
from torch import Tensor, nn
from torch.export.experimental import _export_forward_backward
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(self.norm(x), y)


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


BATCH = (torch.randn(64, 8), torch.randn(64, 8))


@pytest.fixture(scope="module")
def joint_path(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fx") / "joint.pt2"
    torch.export.save(_export_forward_backward(torch.export.export(net, BATCH)), path)
    return path


@pytest.fixture(scope="module")
def document(joint_path: Path) -> Any:
    with zipfile.ZipFile(joint_path) as archive:
        return json.loads(archive.read("joint/models/model.json"))


@pytest.fixture(scope="module")
def graph(joint_path: Path) -> Graph:
    return read("fx", joint_path, Options(gpu="rtx3060"))


def test_the_joint_graph_computes_what_autograd_does(net: Net, document: Any) -> None:
    joint = joint_of(document)
    eager, planned = copy.deepcopy(net), copy.deepcopy(net)
    loss = eager(*BATCH)
    loss.backward()
    given = [dict(planned.named_parameters())[name].detach() for name in joint.parameters]
    given += [dict(planned.named_buffers())[name] for name in joint.buffers]
    found = joint.graph(*given, *BATCH)
    torch.testing.assert_close(found[0], loss.detach())
    gradients = dict(zip(joint.gradients, found[1:], strict=True))
    assert gradients.keys() == dict(eager.named_parameters()).keys()
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(dict(planned.named_buffers())[name], buffer)


def test_bytes_and_phases(net: Net, graph: Graph) -> None:
    kinds = graph.tensors.kind
    weights = [(p.numel() * 4 + 511) // 512 * 512 for p in net.parameters()]
    assert sorted(graph.tensors.bytes[kinds == Kind.PARAMETER].tolist()) == sorted(weights)
    results = {graph.tensors.name[tensor] for tensor in graph.results}
    assert results == {"loss", *(f"{name}.grad" for name, _parameter in net.named_parameters())}
    phases = graph.operations.phase.tolist()
    assert phases.count(Phase.LOSS) == 1
    assert phases.index(Phase.LOSS) < phases.index(Phase.BACKWARD)
    assert phases.count(Phase.UPDATE) == len(list(net.buffers()))


def test_times_are_those_of_the_trace(net: Net, graph: Graph) -> None:
    """Matrix products, which no decomposition changes: as many, as long."""
    program = trace(Iteration(net, BATCH))
    costs = estimate_program(program, find_preset("rtx3060").gpu)
    products = ("mm", "addmm")
    own = [
        cost.seconds
        for operation, cost in zip(program.operations, costs, strict=True)
        if operation.call.target.overloadpacket.__name__ in products
    ]
    read_times = [
        graph.operations.time.item(index)
        for index, name in enumerate(graph.operations.name)
        if name.rpartition("/")[2].split(".")[0].rstrip("0123456789_") in products
    ]
    assert sorted(read_times) == pytest.approx(sorted(own))


def test_a_solved_schedule_and_the_file_again(graph: Graph, tmp_path: Path) -> None:
    save_graph(graph, tmp_path / "g.json")
    recomputed = load_graph(tmp_path / "g.json")
    assert graph_digest(recomputed) == graph_digest(graph)
    plain = baseline(recomputed)
    budget = plain.peak - 2048
    found = solve("search", Problem(recomputed, budget), bound_seconds=0)
    assert found.figures.peak <= budget
    assert found.figures.time >= plain.time


class Loss(nn.Module):
    """The loss of a function of two layers and the batch."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, dtype=dtype), nn.Linear(8, 8, dtype=dtype)
        self.norm = nn.LayerNorm(8, dtype=dtype)
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x).float().square().mean()


def converts(m: Any, x: Tensor) -> Tensor:
    return m.second(m.norm(m.first(x).double().to(x.dtype)))


def autocast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        x = m.second(torch.relu(m.first(x)))
    return m.norm(x.float())


def checks(m: Any, x: Tensor) -> Tensor:
    torch._check(x.shape[0] > 1)
    torch._assert_async((x < 1e9).all())  # pyright: ignore[reportPrivateImportUsage]
    with torch.profiler.record_function("here"):
        return m.norm(m.second(m.first(x)))


def verified_number(m: Any, x: Tensor) -> Tensor:
    """A number that is only verified: no tensor needs it."""
    number = x.abs().sum().long().item()
    torch._check(number >= 0)
    return converts(m, x)


def without_gradient(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        target = m.second(x).softmax(-1)
    return m.norm(m.second(m.first(x))) * target


def checkpointed(m: Any, x: Tensor) -> Tensor:
    return m.norm(m.second(checkpoint(m.first, x, use_reentrant=False)))


def attention(m: Any, x: Tensor) -> Tensor:
    mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    scores = (m.first(x) @ m.second(x).T).masked_fill(~mask, float("-inf"))
    return m.norm(scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "forward", [converts, autocast, checks, verified_number, without_gradient, checkpointed, attention]
)
def test_programs_with_calls_that_verify_or_convert(
    forward: Callable[[Any, Tensor], Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    """The graph is that of the model: parameters' bytes, and loss and gradients as autograd has them."""
    if forward is autocast and dtype is torch.bfloat16:
        pytest.skip("autocast of what is bfloat16 changes nothing")
    torch.manual_seed(0)
    module, x = Loss(forward, dtype), torch.randn(5, 8, dtype=dtype)
    path = tmp_path / "j.pt2"
    torch.export.save(_export_forward_backward(torch.export.export(module, (x,))), path)
    graph = read("fx", path, Options(gpu="rtx3060"))
    assert not any("assert" in name for name in graph.operations.name)
    weights = graph.tensors.bytes[graph.tensors.kind == Kind.PARAMETER]
    assert sorted(weights.tolist()) == sorted(
        (p.numel() * dtype.itemsize + 511) // 512 * 512 for p in module.parameters()
    )
    with zipfile.ZipFile(path) as packed:
        joint = joint_of(json.loads(packed.read("j/models/model.json")))
    loss = module(x)
    loss.backward()
    given = dict(module.named_parameters())
    found = joint.graph(*(given[name].detach() for name in joint.parameters), x)
    near: Any = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 or forward is autocast else {}
    torch.testing.assert_close(found[0], loss.detach(), **near)
    for name, gradient in zip(joint.gradients, found[1:], strict=True):
        torch.testing.assert_close(gradient, given[name].grad, **near)


def branches(m: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: m.first(x), lambda x: m.second(x), (x,))


def computed_number(m: Any, x: Tensor) -> Tensor:
    number = x.abs().sum().long().item()
    torch._check_is_size(number)
    torch._check(number < 4)
    return m.first(x[:number])


def masked_rows(m: Any, x: Tensor) -> Tensor:
    return m.first(x)[x.sum(-1) > 0]


REFUSED: dict[Callable[[Any, Tensor], Tensor], str] = {
    branches: r"cond.*test_fx\.py:\d+.*takes functions.*torch\.where",
    computed_number: r"test_fx\.py:\d+.*needs a number that .*test_fx\.py:\d+.*takes from a tensor",
    masked_rows: r"test_fx\.py:\d+.*size of its result depends on values of a tensor",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("forward", REFUSED)
def test_what_the_program_does_not_say_is_refused_at_the_users_line(
    forward: Callable[[Any, Tensor], Tensor], tmp_path: Path
) -> None:
    program = torch.export.export(Loss(forward), (torch.randn(5, 8),)).run_decompositions()
    torch.export.save(program, tmp_path / "j.pt2")
    with pytest.raises(InputError, match=REFUSED[forward]):
        read("fx", tmp_path / "j.pt2", Options(gpu="rtx3060"))


@pytest.mark.parametrize("forward", [without_gradient, autocast])
def test_regions_of_a_program_that_is_not_decomposed(
    forward: Callable[[Any, Tensor], Tensor], tmp_path: Path
) -> None:
    """They are functions to an operator there; the way out that the line names ends them."""
    program = torch.export.export(Loss(forward), (torch.randn(5, 8),))
    torch.export.save(program, tmp_path / "j.pt2")
    with pytest.raises(InputError, match=r"save program\.run_decompositions\(\)"):
        read("fx", tmp_path / "j.pt2", Options(gpu="rtx3060"))
    torch.export.save(program.run_decompositions(), tmp_path / "j.pt2")
    assert len(read("fx", tmp_path / "j.pt2", Options(gpu="rtx3060")).operations) > 4


def test_numbers_that_json_has_not() -> None:
    assert argument({"as_float": "-Infinity"}, {}) == -float("inf")
    assert argument({"as_floats": [1, "Infinity"]}, {}) == [1.0, float("inf")]


def archive(document: object, path: Path, name: str = "m/models/m.json") -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(name, document if isinstance(document, str) else json.dumps(document))
    return path


def changed(document: Any, *path: Any, to: Any) -> Any:
    """A copy with another value at that place; text may use `{sizes}`."""
    made = copy.deepcopy(document)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return made


G = ("graph_module", "graph")
FAULTS: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "version": (("schema_version", "major"), 9, "version 9 of PyTorch's export schema"),
    "target": ((*G, "nodes", 0, "target"), "os.system", "'os.system' is none of PyTorch's own operators"),
    "custom": ((*G, "nodes", 0, "target"), "torch.ops.mine.f.default", "none of PyTorch's own"),
    "unknown": ((*G, "nodes", 0, "target"), "torch.ops.aten.nope.default", "has no operator"),
    "in-place": ((*G, "nodes", 0, "target"), "torch.ops.aten.add_.Tensor", "run_decompositions()"),
    "composite": ((*G, "nodes", 0, "target"), "torch.ops.aten.linear.default", "run_decompositions()"),
    "argument": ((*G, "nodes", 0, "inputs", 0, "arg"), {"as_graph": 1}, "type as_graph is not understood"),
    "two": ((*G, "nodes", 0, "inputs", 0, "arg"), {}, "must have one type"),
    "early": ((*G, "nodes", 0, "inputs", 0, "arg"), {"as_tensor": {"name": "no"}}, "before it is made"),
    "symbol": ((*G, "nodes", 0, "inputs", 1, "arg"), {"as_sym_int": {"as_name": "s0"}}, "static shapes"),
    "kernel": ((*G, "nodes", 0, "inputs", 1, "arg"), {"as_ints": [7]}, "can't run"),
    "type": ((*G, "tensor_values", "x", "dtype"), 99, "type 99 is not understood"),
    "another": ((*G, "tensor_values", "addmm", "dtype"), 6, "but the file says"),
    "sizes": ((*G, "tensor_values", "x", "sizes", 0), {"as_expr": {}}, "static shapes"),
    "not text": (
        (*G, "tensor_values", "x", "strides"),
        [{"as_int": 1}],
        "is not what torch.export.save writes",
    ),
    "of nobody": (
        ("graph_module", "signature", "output_specs", 0),
        {"buffer_mutation": {"arg": {"name": "addmm"}, "buffer_name": "nope"}},
        "is not what torch.export.save writes",
    ),
    "list": ((*G, "nodes", 0, "outputs"), [], "has no name for it"),
    "result": (("graph_module", "signature", "output_specs", 0), {"token": {"arg": {}}}, "used before"),
    "input": (("graph_module", "signature", "input_specs", 0), {"token": {"arg": {}}}, "kind 'token'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_line(fault: str, document: Any, tmp_path: Path) -> None:
    path, to, words = FAULTS[fault]
    file = archive(changed(document, *path, to=to), tmp_path / "f.pt2")
    result = CliRunner().invoke(main, ["import", "fx", str(file), "--gpu", "rtx3060"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert words in result.stderr
    assert "f.pt2" in result.stderr


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "f.pt2"
    with pytest.raises(InputError, match=r"^[^:]*f\.pt2: no such file"):
        read("fx", path, Options(gpu="rtx3060"))
    torch.save({"a": 1}, path)
    with pytest.raises(InputError, match="has 0 programs"):
        read("fx", path, Options(gpu="rtx3060"))
    path.write_bytes(b"\x80\x04N.")
    with pytest.raises(InputError, match=r"f\.pt2: is no \.pt2 file: .*pickled GraphModule"):
        read("fx", path, Options(gpu="rtx3060"))
    with pytest.raises(InputError, match=r"f\.pt2: Expecting value"):
        read("fx", archive("nothing", path), Options(gpu="rtx3060"))
    with pytest.raises(InputError, match="--gpu NAME"):
        read("fx", path, Options())
