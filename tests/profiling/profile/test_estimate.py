"""Whole programs by the roofline, and models built without the memory that they would need."""

import resource
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Phase
from memplan.graphs.machine import Updates
from memplan.graphs.machines.gpus import find_gpu
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import load_model_file
from memplan.model.iteration import Iteration
from memplan.profiling.profile.efficiency import efficiencies
from memplan.profiling.profile.estimate import estimate, estimate_program
from memplan.profiling.profile.fake_build import fake_build
from memplan.tracing.trace import trace
from memplan.updates.choice import OptimizerChoice, updated
from not_none import not_none
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import FlopCounterMode

EXAMPLES = Path(__file__).parents[3] / "examples"
A100 = find_gpu("A100")
PRODUCT_RATE = not_none(efficiencies().of_products(A100, "bfloat16")) * not_none(A100.bfloat16)
LARGER = [
    ("RTX 3060", "RTX 3090"),
    ("RTX 3090", "RTX 4090"),
    ("T4", "V100"),
    ("A100 40GB", "A100"),
    ("A100", "H100"),
    ("H100", "H200"),
]


def seconds_of(program, gpu):
    return sum(cost.seconds for cost in estimate_program(program, gpu))


def mlp(batch):
    layers = [nn.Linear(64, 64), nn.GELU(), nn.BatchNorm1d(64), nn.Linear(64, 64)]
    return fake_build(lambda: Iteration(nn.Sequential(*layers), (torch.ones(batch, 64),), torch.sum))


def test_a_larger_batch_takes_longer_and_a_larger_gpu_less():
    batches = [trace(mlp(batch)) for batch in (2**8, 2**14, 2**20)]
    times = [seconds_of(program, A100) for program in batches]
    assert times == sorted(set(times))
    for small, large in LARGER:
        assert all(seconds_of(p, find_gpu(large)) <= seconds_of(p, find_gpu(small)) for p in batches)


@pytest.mark.parametrize("size", [(4096, 4096), (1024, 4096), (4096, 1024)])
def test_muons_products_of_matrices_take_their_time(size):
    """The oracle counts those that PyTorch's own step runs."""

    def build():
        layer = nn.Linear(*size, bias=False)
        return Iteration(layer, (torch.ones(8, size[0]),), torch.sum)

    weight = nn.Parameter(torch.ones(size, device="meta"))
    weight.grad = torch.ones(size, device="meta")
    with FlopCounterMode(display=False) as counter:
        torch.optim.Muon([weight]).step()
    choice = OptimizerChoice("muon", lr=1e-3)
    program = trace(updated(fake_build(build), choice))
    updates = [op.phase == Phase.UPDATE for op in program.operations]
    cost = estimate_program(program, A100)[updates.index(True)]
    products = counter.get_total_flops() / PRODUCT_RATE
    walks = cost.seconds - products / efficiencies().kinds["product"]
    assert 0 < walks < 46 * 4 * weight.numel() / (A100.bandwidth / 4)
    on_host = estimate_program(program, A100, updates=Updates(host=1e9))
    assert on_host[updates.index(True)].host_seconds is None


def test_the_sum_is_that_of_the_matrix_products_where_they_dominate():
    """Forward, gradient of the weight, gradient of the input: 6 · batch · width² FLOPs for a linear layer."""
    width, batch = 8192, 8192

    def build():
        layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4))).bfloat16()
        return Iteration(layers, (torch.ones(batch, width, dtype=torch.bfloat16),), torch.sum)

    program = trace(fake_build(build))
    products = 4 * 6 * batch * width**2 - 2 * batch * width**2  # the input of the first layer has no gradient
    bound = products / PRODUCT_RATE
    assert bound < seconds_of(program, A100) < 1.1 * bound


def test_llama_2_7b_is_built_and_traced_without_its_memory():
    """Two of its 32 layers; all of them take 15 s and are timed in benchmarks/profile_models.py."""
    spec = not_none(spec_from_file_location("llama2_7b", EXAMPLES / "llama2_7b.py"))
    example = module_from_spec(spec)
    not_none(spec.loader).exec_module(example)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    iteration = fake_build(lambda: Iteration(*example.build(layers=2)))
    program = trace(iteration)
    taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    weights = sum(program.storages[program.values[v].storage].bytes for v in program.parameters.values())
    assert all(isinstance(parameter, FakeTensor) for parameter in iteration.module.parameters())
    assert {parameter.dtype for parameter in iteration.module.parameters()} == {torch.bfloat16}
    assert weights == 2 * sum(parameter.numel() for parameter in iteration.module.parameters()) > 1.3e9
    assert taken < weights / 4
    assert 0.01 < seconds_of(program, A100) < 0.1


def test_an_estimated_graph_has_the_gpu_as_its_machine():
    seen = []
    graph = estimate(str(EXAMPLES / "mlp.py"), "rtx 3090", lambda *step: seen.append(step))
    validate(graph)
    assert graph.machine == find_preset("RTX 3090").machine
    assert graph.source["estimate"]["gpu"] == "RTX 3090"
    assert graph.source["fingerprint"].startswith("sha256:")
    assert (graph.tensors.bytes % 512 == 0).all()
    assert (graph.operations.time >= efficiencies().kernel).all()
    host = find_preset("RTX 3090").gpu.capability
    least, most = (
        [efficiencies().launch_seconds(Phase(phase), kind, host) for phase in graph.operations.phase]
        for kind in ("pointwise", "product")
    )
    found = graph.operations.launch.tolist()
    assert all(one in pair for one, pair in zip(found, zip(least, most, strict=True), strict=True))
    assert set(least) & set(found)
    assert set(most) & set(found)
    assert len(seen) == len(graph.operations)


def test_fake_and_real_models_trace_alike():
    file = load_model_file(str(EXAMPLES / "mlp.py"))
    real, fake = file.build(), fake_build(file.build)
    assert isinstance(next(fake.module.parameters()), FakeTensor)
    assert trace(real).fingerprint == trace(fake).fingerprint


def test_an_unknown_gpu_is_refused_before_the_model_runs(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("raise SystemExit('ran')")
    with pytest.raises(InputError, match="H100"):
        estimate(str(path), "H1000")


# ── models built without memory ─────────────────────────────────────────────────────────────────────


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 10, bias=False)
        self.out.weight = self.table.weight


@pytest.mark.parametrize(
    "change", [nn.Module.half, nn.Module.double, lambda module: module.to(torch.bfloat16)]
)
def test_a_fake_model_changes_its_type_as_a_real_one_does(change):
    real, fake = change(Tied()), fake_build(lambda: change(Tied()))
    assert fake.out.weight is fake.table.weight
    for one, other in ((real.parameters, fake.parameters), (real.buffers, fake.buffers)):
        assert [(t.shape, t.dtype) for t in one()] == [(t.shape, t.dtype) for t in other()]
    assert all(isinstance(parameter, FakeTensor) for parameter in fake.parameters())
    assert not isinstance(change(Tied()).table.weight, FakeTensor)


def test_a_build_that_asks_for_a_value_is_run_for_real():
    def build():
        return nn.Linear(int(torch.linspace(1, 5, 3)[1].item()), 2)

    built = fake_build(build)
    assert built.in_features == 3
    assert not isinstance(built.weight, FakeTensor)


@pytest.mark.scripts
def test_vit_asks_for_a_value_in_its_file():
    graph = estimate(str(EXAMPLES / "vit.py"), "A100")
    validate(graph)
