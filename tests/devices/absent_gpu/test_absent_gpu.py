"""Traces for GPUs that are not here: their operations, autocast, devices; compared with what PyTorch's CUDA
build chose by itself (golden rows, recorded by benchmarks/gpu_operations/record.py).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from memplan.devices.absent_gpu import autocast
from memplan.devices.absent_gpu.absent_gpu import absent_gpu
from memplan.devices.absent_gpu.capability import Capability
from memplan.graphs.errors import MemplanError
from memplan.graphs.machines.gpus import gpus
from memplan.graphs.machines.presets import find_preset
from memplan.model.iteration import Iteration
from memplan.profiling.profile import estimate as estimating
from memplan.profiling.profile.estimate import estimate
from memplan.profiling.profile.fake_build import fake_build
from memplan.program.program import Program
from memplan.torch_support.torch_operators import autocast_operators
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.trace import trace
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT))  # benchmarks/gpu_operations has the models of the golden rows
from benchmarks.gpu_operations.compare import traced  # noqa: E402
from benchmarks.gpu_operations.record import GOLDEN  # noqa: E402
from benchmarks.gpu_operations.rows import Row, answered, operators, read_rows  # noqa: E402

ROWS = [row for row in read_rows(GOLDEN) if not row.fault]
RECORDED_WITH = "2.13."
IN_TESTS = 40
SMALL = {
    "encoder",
    "unet",
    "vit",
    "gpt2",
    "gpt2-eager",
    "resnet",
    "resnet-channels-last",
    "dit",
    "cells",
    "convnext",
}
HOPPER, AMPERE, TURING = Capability(9, 0), Capability(8, 6), Capability(7, 5)

same_torch = pytest.mark.skipif(
    not torch.__version__.startswith(RECORDED_WITH), reason=f"rows are of PyTorch {RECORDED_WITH}"
)


def drawn() -> list[Row]:
    """Rows of small models, drawn by a fixed seed: every model, precision and capability is among them."""
    rows = [row for row in ROWS if row.model in SMALL]
    Random(20261126).shuffle(rows)
    chosen: list[Row] = []
    for place in (0, 1, 2):  # each capability, model and precision once, then others
        for value in sorted({row[place] for row in rows}):
            if not any(row[place] == value for row in chosen):
                chosen.append(next(row for row in rows if row[place] == value))
    return [*chosen, *(row for row in rows if row not in chosen)][:IN_TESTS]


def cases() -> list[Any]:
    """Twenty rows for `make test`, as many for `make test-scripts`; benchmarks/gpu_operations has all."""
    heavy = [[], [pytest.mark.scripts]]
    names = ("-".join(map(str, row.key)) for row in drawn())
    return [
        pytest.param(row, id=name, marks=heavy[number >= IN_TESTS // 2])
        for number, (row, name) in enumerate(zip(drawn(), names, strict=True))
    ]


@pytest.mark.sampled(1)
@same_torch
@pytest.mark.parametrize("row", cases())
def test_operations_saved_bytes_and_fingerprint_are_those_of_cudas_build(row: Row) -> None:
    made = answered(Row(*row.key), lambda: traced(row))
    assert made == row


def test_capabilities_that_stand_for_each_other_have_the_same_rows() -> None:
    """`Capability.like` saves traces: golden rows show that nothing differs."""
    found: dict[Any, set[Any]] = defaultdict(set)
    for row in ROWS:
        found[Capability.parse(row.capability).like, *row.key[1:]].add(row[4:])
    assert all(len(answers) == 1 for answers in found.values())
    assert any(
        len(
            {
                Capability.parse(row.capability)
                for row in ROWS
                if Capability.parse(row.capability).like == like
            }
        )
        > 1
        for like, *_ in found
    )


def test_every_gpu_of_the_table_stands_for_one_that_was_recorded() -> None:
    recorded = {Capability.parse(row.capability) for row in ROWS}
    modern = [gpu for gpu in gpus() if gpu.capability >= (7, 0)]
    assert {Capability(*gpu.capability).like for gpu in modern} <= recorded


def test_the_lists_of_autocast_are_the_dispatchers() -> None:
    """CUDA's entries are registered in the CPU's build too: each has a policy here, and nothing else has."""
    groups = (
        *(autocast.LOWER, autocast.FLOAT32, autocast.DTYPE_FLOAT32, autocast.APPENDED_DTYPE),
        *(autocast.WIDEST, autocast.BANNED),
    )
    listed = frozenset().union(*groups)
    assert sum(map(len, groups)) == len(listed)
    dispatched = {name for name in autocast_operators("AutocastCUDA") if "imname" not in name}
    if torch.__version__.startswith(RECORDED_WITH):
        assert listed == dispatched
    assert listed & dispatched


# ── what a GPU's trace has ──────────────────────────────────────────────────────────────────────────


def of(forward: Callable[..., Tensor], *inputs: Tensor, on: Capability = HOPPER) -> Program:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 64))

        def forward(self, *given: Tensor) -> Tensor:
            return forward(self.weight, *given).float().sum()

    with absent_gpu(on):
        return trace(fake_build(lambda: Iteration(Model(), inputs)))


def attended(dtype: torch.dtype, groups: int = 2, length: int = 16, **options: Any) -> Callable[..., Tensor]:
    def forward(weight: Tensor) -> Tensor:
        query = (weight[None, None, :length].expand(1, 2, length, 64) * 1).to(dtype)
        key = query[:, :groups]
        mask = (
            torch.ones(length, length, dtype=torch.bool, device=query.device) if options.get("mask") else None
        )
        return functional.scaled_dot_product_attention(
            query,
            key,
            key,
            attn_mask=mask,
            dropout_p=options.get("dropout", 0.0),
            is_causal=options.get("is_causal", False),
            enable_gqa=groups == 1,
        )

    return forward


ATTENTION = [
    # capability, call, kernel; None: products
    (HOPPER, attended(torch.bfloat16), "cudnn"),
    (HOPPER, attended(torch.bfloat16, dropout=0.1), "flash"),  # cuDNN's probabilities are sixteenths
    (HOPPER, attended(torch.bfloat16, dropout=0.125), "cudnn"),
    (HOPPER, attended(torch.float32), "efficient"),
    (HOPPER, attended(torch.float32, groups=1), None),
    (HOPPER, attended(torch.bfloat16, groups=1), "cudnn"),
    (AMPERE, attended(torch.bfloat16, groups=1), "flash"),
    (AMPERE, attended(torch.float16, mask=True), "efficient"),
    (AMPERE, attended(torch.float16, is_causal=True), "flash"),
    (TURING, attended(torch.bfloat16), None),
    (TURING, attended(torch.float16), "efficient"),
    (TURING, attended(torch.float16, groups=1), None),
    (Capability(6, 1), attended(torch.float32), "efficient"),
    (HOPPER, attended(torch.float64), None),
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("capability", "forward", "kernel"), ATTENTION)
def test_attention_has_the_kernel_of_the_gpu(
    capability: Capability, forward: Callable[..., Tensor], kernel: str | None
) -> None:
    found = {name for name in operators(of(forward, on=capability)) if "scaled_dot_product" in name}
    names = {f"_scaled_dot_product_{kernel}_attention{end}.default" for end in ("", "_backward")}
    assert {name.removeprefix("aten.") for name in found} == (names if kernel else set())


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [
        (SDPBackend.MATH, None),
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.FLASH_ATTENTION, "flash"),
        (SDPBackend.CUDNN_ATTENTION, "cudnn"),
    ],
)
def test_attention_is_of_the_kernels_that_the_code_allows(backend: SDPBackend, kernel: str | None) -> None:
    def forward(weight: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return attended(torch.bfloat16)(weight)

    found = {name for name in operators(of(forward)) if "attention." in name}
    assert found == ({f"_scaled_dot_product_{kernel}_attention.default"} if kernel else set())


@pytest.mark.parametrize(
    ("order", "dtype", "kernel"),
    [
        ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], torch.bfloat16, "efficient"),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], torch.bfloat16, "flash"),
        ([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], torch.bfloat16, "cudnn"),
        ([SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], torch.float32, "efficient"),
        ([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], torch.bfloat16, None),
    ],
)
def test_attention_is_of_the_first_kernel_in_the_order_that_the_code_sets(
    order: list[SDPBackend], dtype: torch.dtype, kernel: str | None
) -> None:
    def forward(weight: Tensor) -> Tensor:
        with sdpa_kernel(order, set_priority=True):
            return attended(dtype)(weight)

    found = {name for name in operators(of(forward)) if "attention." in name}
    assert found == ({f"_scaled_dot_product_{kernel}_attention.default"} if kernel else set())


def test_attention_that_no_allowed_kernel_can_run() -> None:
    def forward(weight: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return attended(torch.float32)(weight)

    with pytest.raises(TraceError, match=r"no kernel that torch\.nn\.attention\.sdpa_kernel allows"):
        of(forward)


def test_deterministic_attention_is_not_cudnns() -> None:
    def names() -> set[str]:
        return {name for name in operators(of(attended(torch.bfloat16))) if "attention." in name}

    try:
        torch.use_deterministic_algorithms(True)
        assert names() == {"_scaled_dot_product_flash_attention.default"}
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert names() == {"_scaled_dot_product_cudnn_attention.default"}
    finally:
        torch.use_deterministic_algorithms(False)


def test_dropout_keeps_its_mask_as_bits() -> None:
    program = of(lambda weight: functional.dropout(weight * 2, 0.1))
    masks = [value for value in program.values if value.dtype == torch.bool]
    assert masks
    assert operators(program)["native_dropout.default"] == 1


def test_no_dropout_is_no_operation() -> None:
    found = operators(of(lambda weight: functional.dropout(weight * 2, 0.0)))
    assert not any("dropout" in name or "clone" in name for name in found)


@pytest.mark.parametrize(
    "cast",
    [
        lambda: torch.autocast("cuda", dtype=torch.bfloat16),
        lambda: torch.amp.autocast("cuda", dtype=torch.bfloat16),
        lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16),  # pyright: ignore[reportDeprecated]
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast")
def test_autocast_of_cuda_casts_by_cudas_lists(cast: Callable[[], Any]) -> None:
    """Softmax and layer norm are in float32; the CPU's lists leave them in bfloat16."""

    def forward(weight: Tensor) -> Tensor:
        with cast():
            made = weight @ weight
            results = made, made.softmax(-1), functional.layer_norm(made, (64,)), made.sum()
            assert [x.dtype for x in results] == [torch.bfloat16, *[torch.float32] * 3]
            return made

    of(forward)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cuda") == torch.float16


def test_autocast_by_the_devices_type_and_of_the_cpu() -> None:
    def forward(weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, dtype=torch.float16):
            assert (weight @ weight).dtype == torch.float16
            with torch.autocast("cuda", enabled=False):
                assert (weight @ weight).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (weight @ weight).dtype == torch.float32
            assert not torch.is_autocast_enabled("cuda")
        return weight * 2

    of(forward)


def test_the_callers_autocast_is_put_back() -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        of(lambda weight: weight @ weight)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.float16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16
    assert torch.ones(2, 2).softmax(-1).dtype == torch.float32


def test_a_loss_that_cuda_bans_under_autocast() -> None:
    def forward(weight: Tensor) -> Tensor:
        with torch.autocast("cuda"):
            return functional.binary_cross_entropy(weight.sigmoid(), weight.sigmoid())

    with pytest.raises(TraceError, match="unsafe to autocast"):
        of(forward)


# ── devices ─────────────────────────────────────────────────────────────────────────────────────────


def test_code_that_asks_sees_the_gpu() -> None:
    def forward(weight: Tensor) -> Tensor:
        assert weight.is_cuda
        assert not weight.is_cpu
        assert weight.device == torch.device("cuda", 0)
        assert torch.cuda.is_available()
        assert (torch.cuda.device_count(), torch.cuda.get_device_capability()) == (1, (9, 0))
        assert torch.zeros(2).device.type == "cpu"
        made = torch.arange(64, device="cuda") + torch.tensor([1] * 64, device=weight.device)
        assert weight.new_tensor([1.0], device="cpu").device.type == "cpu"
        made = made + torch.zeros(64).cuda() + weight.new_tensor([1.0] * 64) + torch.ones(64).to("cuda")
        return weight * made.to(weight.device) * torch.tensor(2.0)

    program = of(forward)
    assert program.device == torch.device("cuda", 0)
    assert {value.device.type for value in program.values} == {"cuda", "cpu"}
    assert not torch.cuda.is_available()
    assert torch.zeros(2).device == torch.device("cpu")


RECURRENT = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}(4, 4)

    def forward(self, x):
        {forward}


def build():
    return Model(), (torch.randn(3, 2, 4),), lambda output: output.sum()
"""
CELL = """state = self.layer(x[0])
        return (state[0] if isinstance(state, tuple) else state)"""


@pytest.mark.parametrize("layer", ["nn.LSTM", "nn.GRU", "nn.RNN"])
def test_recurrent_layers_of_a_gpu_that_is_not_here_are_refused(
    tmp_path: Path, layer: str, recwarn: pytest.WarningsRecorder
) -> None:
    file = tmp_path / "model.py"
    file.write_text(RECURRENT.format(layer=layer, forward="return self.layer(x)[0]"))
    with pytest.raises(MemplanError, match=r"model.py:\d+: recurrent layers .* nn\.LSTMCell or nn\.GRUCell"):
        estimate(str(file), "a100")
    assert not [each for each in recwarn if "cuDNN" in str(each.message)]
    if layer != "nn.RNN":
        file.write_text(RECURRENT.format(layer=f"{layer}Cell", forward=CELL))
        assert estimate(str(file), "a100").operations


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(TraceError, match="cuda:0 and cpu"):
        of(lambda weight: weight * torch.ones(64))


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64, device="cuda:0")
        self.second = nn.Linear(64, 64).cuda()
        self.third = nn.Linear(64, 64)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.third(self.second(self.first(x.to("cuda")))).float().square().mean()

def build():
    assert torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    torch.cuda.manual_seed(1)
    return Model().to("cuda"), (torch.randn(32, 64, device="cuda:0"),)

def value():
    width = int(torch.full((), 64.0).item())
    return nn.Linear(width, 4).to("cuda"), (torch.randn(2, width).cuda(),), torch.sum
"""


@pytest.mark.parametrize("entry", ["build", "value"])
def test_a_model_file_for_cuda_is_estimated(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    graph = estimate(f"{path}:{entry}", "rtx4090")
    assert graph.source["device"] == "cuda:0"
    assert graph.source["estimate"]["capability"] == "8.9"
    assert not torch.cuda.is_available()
    if entry == "build":
        assert sum("mm" in name for name in graph.operations.name) == 8


VALUES = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, lengths):
        return sum(self.linear(x[: int(length)]).sum() for length in lengths.tolist())

def build():
    return Model(), (torch.randn(4, 8), torch.tensor([2, 3]))
"""


@pytest.mark.scripts
def test_a_model_that_asks_for_values_is_built_if_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.py"
    path.write_text(VALUES)
    assert sum("mm" in name for name in estimate(str(path), "rtx4090").operations.name) >= 2
    monkeypatch.setattr(estimating, "available_bytes", lambda: 100)
    with pytest.raises(MemplanError, match="depends on the values of tensors"):
        estimate(str(path), "rtx4090")


def test_a_second_gpu_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.replace("cuda:0", "cuda:1"))
    with pytest.raises(MemplanError, match="asks for cuda:1: an estimate is for one GPU"):
        estimate(str(path), "rtx4090")


def test_the_gpu_decides_the_size(tmp_path: Path) -> None:
    """Attention of grouped queries: products and all scores on a T4, one kernel on an RTX 4090."""
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
        "class M(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.l = nn.Linear(64, 192).bfloat16()\n"
        "    def forward(self, x):\n"
        "        q, k, v = self.l(x).chunk(3, -1)\n"
        "        q = q[:, None].expand(-1, 4, -1, -1)\n"
        "        made = F.scaled_dot_product_attention(q, k[:, None], v[:, None], enable_gqa=True)\n"
        "        return made.float().sum()\n"
        "def build():\n    return M(), (torch.randn(1, 512, 64).bfloat16(),)\n"
    )
    small, large = (estimate(str(path), name) for name in ("t4", "rtx4090"))
    scores = 4 * 512 * 512 * 2
    assert small.tensors.bytes.max() >= scores > large.tensors.bytes.max()
    assert find_preset("t4").gpu.capability == (7, 5)
