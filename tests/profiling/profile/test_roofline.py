"""The roofline against closed forms, and the orders that it must keep: by batch, by GPU."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Phase
from memplan.graphs.machines.gpus import GIB, find_gpu
from memplan.graphs.machines.gpus import gpus as all_gpus
from memplan.profiling.profile.efficiency import Efficiencies, efficiencies, efficiencies_of
from memplan.profiling.profile.products import product_share
from memplan.profiling.profile.roofline import (
    CONVOLUTION_KINDS,
    KINDS,
    Work,
    distinct_bytes,
    kind_and_rate,
    seconds,
    work_of,
)
from not_none import not_none
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten
ROUND = Efficiencies(
    {
        gpu.capability: {**dict.fromkeys(["float32", "float64", "float16"], 0.5), "bfloat16": 0.6}
        for gpu in all_gpus()
    },
    {"product": 0.9, "pointwise": 1.0, "attention": 1.0},
    bandwidth=0.8,
    kernel=2e-6,
    launch={Phase.FORWARD: 1e-5, Phase.UPDATE: 5e-6},
    serial=0.5,
    library=9e-5,
    host=2.0,
)
sizes = st.integers(1, 300)
gpus = st.sampled_from(all_gpus())
LARGER = [
    ("RTX 3060", "RTX 3090"),
    ("RTX 3090", "RTX 4090"),
    ("RTX 4080", "RTX 4090"),
    ("T4", "V100"),
    ("V100", "A100 40GB"),
    ("A100 40GB", "A100"),
    ("A100", "H100"),
    ("H100", "H200"),
    ("L4", "RTX 4090"),
]


def call(target, *args, **kwargs):
    return work_of(target, args, kwargs, target(*args, **kwargs))


@given(sizes, sizes, sizes, gpus)
def test_a_matrix_product_is_the_closed_form(m, k, n, gpu):
    work = call(aten.mm.default, torch.empty(m, k), torch.empty(k, n))
    assert work == Work(2 * m * k * n, 4 * (m * k + k * n + m * n), "float32", "product")
    compute = 2 * m * k * n / (0.5 * gpu.float32)
    memory = 4 * (m * k + k * n + m * n) / (0.8 * gpu.bandwidth)
    longer, shorter = max(compute, memory), min(compute, memory)
    assert seconds(work, gpu, ROUND) == pytest.approx((longer + shorter / 2) / 0.9 + 2e-6)


@given(sizes, sizes, gpus, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_an_addition_is_bound_by_its_bytes(m, n, gpu, dtype):
    x, y = torch.empty(m, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
    work = call(aten.add.Tensor, x, y)
    assert (work.flops, work.bytes) == (0, 3 * m * n * dtype.itemsize)
    assert seconds(work, gpu, ROUND) == pytest.approx(work.bytes / (0.8 * gpu.bandwidth) + 2e-6)


def test_a_large_product_of_halves_runs_at_the_tensor_cores_rate():
    x = torch.empty(1024, 1024, dtype=torch.bfloat16)
    work = call(aten.mm.default, x, x.clone())
    for name, share, rate in (("A100", 0.6, 312e12), ("V100", 0.5, 15.7e12)):
        compute, memory = 2 * 1024**3 / (share * rate), work.bytes / (0.8 * find_gpu(name).bandwidth)
        assert seconds(work, find_gpu(name), ROUND) == pytest.approx((compute + memory / 2) / 0.9 + 2e-6)


def test_narrow_products_reach_less_of_the_rate():
    gpu, rates = find_gpu("A100"), []
    for width in (512, 1024, 4096):
        x, y = (torch.empty(n, width, dtype=torch.bfloat16, device="meta") for n in (16384, width))
        work = call(aten.mm.default, x, y)
        rates.append(work.flops / seconds(work, gpu))
    assert 80e12 < rates[0] < rates[1] < rates[2] < 250e12


FLASH = aten._scaled_dot_product_flash_attention_for_cpu
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]


@pytest.mark.parametrize(
    ("gpu", "width", "causal", "published"),
    [
        ("A100", 64, True, [88, 119, 140, 156, 165, 171]),
        ("A100", 128, True, [99, 133, 155, 173, 182, 189]),
        ("H100", 64, False, [282, 355, 395, 414, 426, 427]),
        ("H100", 128, False, [344, 445, 500, 526, 539, 537]),
    ],
)
def test_attention_takes_what_its_authors_measured(gpu, width, causal, published):
    """10^12 FLOP/s of forward and backward by length: FlashAttention-2, figure 4, as recalled; cuDNN in
    FlashAttention-3's figures 5 and 6, of which the times are added."""
    found = []
    for length in LENGTHS:
        q = torch.empty(16384 // length, 2048 // width, length, width, dtype=torch.bfloat16, device="meta")
        forward = work_of(FLASH.default, (q, q, q, 0.0, causal), {}, (q, q[..., 0]))
        arguments = (q, q, q, q, q, q[..., 0], 0.0, causal)
        backward = work_of(
            aten._scaled_dot_product_flash_attention_for_cpu_backward.default, arguments, {}, (q,) * 3
        )
        assert forward.keys == backward.keys == (length // 2 if causal else length)
        assert forward.scores == backward.scores == forward.keys * 16384 * 2048 // width
        both = [seconds(work, find_gpu(gpu)) for work in (forward, backward)]
        found.append((forward.flops + backward.flops) / sum(both) / 1e12)
    assert found == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_attention_has_a_time_on_each_gpu(gpu):
    """Also where PyTorch has no flash attention, and a script asks for it all the same."""
    longer = []
    for length in (64, 1024, 8192):
        q = torch.empty(1, 4, length, 64, dtype=torch.float16, device="meta")
        longer.append(seconds(work_of(FLASH.default, (q, q, q), {}, (q, q[..., 0])), gpu))
    assert 0 < longer[0] < longer[1] < longer[2] < 10


def test_the_thread_takes_longer_for_libraries_and_on_earlier_hosts():
    assert ROUND.launch_seconds(Phase.FORWARD, "pointwise", (9, 0)) == pytest.approx(1e-5)
    assert ROUND.launch_seconds(Phase.FORWARD, "product", (9, 0)) == pytest.approx(1e-4)
    assert ROUND.launch_seconds(Phase.FORWARD, "product", (8, 0)) == pytest.approx(2e-4)
    assert ROUND.launch_seconds(Phase.UPDATE, "product", (9, 0)) == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("groups", "dtype", "last", "kind", "rate"),
    [
        (1, torch.float16, False, "convolution, channels first", "float16"),
        (1, torch.float16, True, "convolution, channels last", "float16"),
        (1, torch.float32, False, "convolution, channels first", "tf32"),
        (2, torch.float16, False, "grouped convolution, channels first", "float16"),
        (2, torch.float16, True, "grouped convolution, channels last", "float32"),
        (8, torch.float16, False, "depthwise convolution, channels first", "float32"),
    ],
)
def test_kinds_of_convolutions(groups, dtype, last, kind, rate):
    x = torch.empty(2, 8, 9, 9, dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if last else x
    weight = torch.empty(16, 8 // groups, 3, 3, dtype=dtype)
    work = call(aten.convolution.default, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    assert (work.kind, work.rate) == (kind, rate)
    on_old = kind_and_rate(work, find_gpu("V100"))
    assert on_old == (("convolution", "float32") if rate == "tf32" else (kind, rate))


def test_a_capability_without_rows_has_the_share_of_measured_products_else_of_the_nearest():
    fitted = efficiencies_of(
        {
            "compute": {"7.5 float16": 0.5, "8.0 float16": 0.7, "9.0 float64": 0.4, "8.0 float64": 0.1},
            "kinds": {},
            "seconds": {"bandwidth": 1, "kernel": 0, "serial": 0, "library": 0, "host": 1},
            "launch": {},
        }
    )
    # Measured on the L40S; on other GeForce cards of this generation; nobody measured float64.
    shares = {"A100": 0.7, "T4": 0.5, "L40S": 264 / 362}
    assert {name: fitted.of_rate(find_gpu(name), "float16") for name in shares} == pytest.approx(shares)
    assert product_share(find_gpu("RTX 4080"), "float16") == pytest.approx(1.08, abs=0.1)
    assert product_share(find_gpu("RTX 6000 Ada"), "float16") == pytest.approx(0.65, abs=0.1)
    nearest = {"V100": 0.1, "A100": 0.1, "RTX 4090": 0.1, "H100": 0.4, "RTX 5090": 0.4}
    assert {name: fitted.of_rate(find_gpu(name), "float64") for name in nearest} == nearest


def test_products_in_half_precision_hide_most_of_their_bytes():
    """A square product of 4,096 on an A100, by the closed form."""
    gpu, flops = find_gpu("A100"), 2 * 4096**3
    fitted = replace(ROUND, products={(8, 0): 0.8}, unhidden=0.25, kinds={**ROUND.kinds, "convolution": 1.0})
    computed, moved = flops / (0.8 * not_none(gpu.bfloat16)), 3 * 2 * 4096**2 / gpu.bandwidth
    work = Work(flops, 3 * 2 * 4096**2, "bfloat16", "product")
    assert seconds(work, gpu, fitted) == pytest.approx((computed + 0.25 * moved) / 0.9 + 2e-6)
    # Many bytes for few FLOPs: bound by them.
    assert seconds(work._replace(flops=10**6), gpu, fitted) == pytest.approx(moved / 0.8 / 0.9 + 2e-6)
    # Neither convolutions nor float32 were measured by size.
    assert seconds(work._replace(rate="float32"), gpu, fitted) == seconds(
        work._replace(rate="float32"), gpu, ROUND
    )
    convolution = work._replace(kind="convolution")
    assert seconds(convolution, gpu, fitted) == seconds(convolution, gpu, replace(fitted, products={}))


def test_the_fitted_values_are_shares_and_short_times():
    fitted = efficiencies()
    shares = [share for rates in fitted.compute.values() for share in rates.values()]
    # Data sheets of GeForce cards give rates at clocks that the cards exceed.
    assert all(0.1 < share < 1.3 for share in [*shares, *fitted.kinds.values(), fitted.bandwidth])
    assert 1e-6 < fitted.kernel < 2e-5
    assert all(1e-6 < launch < 1e-4 for launch in fitted.launch.values())
    assert 1e-5 < fitted.library < 2e-4
    assert 0 <= fitted.serial <= 1 <= fitted.host < 2
    assert 0 < fitted.unhidden < 1
    assert all(0.6 < share < 0.9 for share in fitted.products.values())
    assert fitted.kinds.keys() == {*KINDS, *CONVOLUTION_KINDS, "pointwise"}
    assert fitted.launch.keys() == {*Phase}


def test_tf32_follows_the_settings_of_torch(monkeypatch):
    x = torch.empty(8, 8)
    assert call(aten.mm.default, x, x).rate == "float32"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert call(aten.mm.default, x, x).rate == "tf32"


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_by_counting_products(groups, transposed):
    """Each output element (input element when transposed) meets channels / groups × kernel² weights."""
    x = torch.randn(2, 8, 9, 9, requires_grad=True)
    weight = torch.randn(8, 16 // groups, 3, 3) if transposed else torch.randn(16, 8 // groups, 3, 3)
    args = (x.detach(), weight, None, [2, 2], [1, 1], [1, 1], transposed, [0, 0], groups)
    y = aten.convolution.default(*args)
    met = x.numel() * 16 // groups * 9 if transposed else y.numel() * 8 // groups * 9
    assert work_of(aten.convolution.default, args, {}, y).flops == 2 * met
    for wanted in ([True, True, False], [False, True, False], [True, False, False]):
        backward = (y, x.detach(), weight, [0], *args[3:], wanted)
        work = call(aten.convolution_backward.default, *backward)
        assert work.flops == sum(wanted) * 2 * met
        assert work.rate == ("float32" if groups == 8 else "tf32")


def test_attention_counts_as_its_matrix_products():
    q, k, v = torch.empty(2, 4, 16, 8), torch.empty(2, 4, 32, 8), torch.empty(2, 4, 32, 8)
    target = aten._scaled_dot_product_flash_attention_for_cpu.default
    pairs = 2 * 4 * 16 * 32
    work = call(target, q, k, v)
    assert work.flops == 2 * pairs * (8 + 8)
    result = target(q, k, v)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert call(backward, q, q, k, v, *result, 0.0, False).flops == 2 * pairs * 5 * 8


def test_flops_of_a_whole_forward_equal_the_counter_of_torch():
    x, w, b = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6)
    with FlopCounterMode(display=False) as counter:
        torch.addmm(b, x, w)
        torch.bmm(x[None], w[None])
    own = call(aten.addmm.default, b, x, w).flops + call(aten.bmm.default, x[None], w[None]).flops
    assert own == counter.get_total_flops() == 2 * (2 * 4 * 5 * 6)


def test_only_the_rows_that_are_picked_are_read():
    table, rows = torch.empty(10_000, 8), torch.zeros(3, dtype=torch.int64)
    assert call(aten.embedding.default, table, rows).bytes == 2 * 3 * 8 * 4 + 3 * 8


@pytest.mark.parametrize(
    ("tensor", "elements"),
    [
        (torch.empty(6, 7), 42),
        (torch.empty(7).expand(6, 7), 7),
        (torch.empty(6, 7).t(), 42),
        (torch.empty(6, 7)[:, ::2], 24),
        (torch.empty(8).unfold(0, 4, 1), 8),
        (torch.empty(0, 7), 0),
        (torch.empty(()), 1),
    ],
)
def test_distinct_bytes(tensor, elements):
    assert distinct_bytes(tensor) == 4 * elements


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, sizes, gpus, st.sampled_from([torch.float32, torch.float16]))
def test_more_rows_never_take_less(m, k, n, gpu, dtype):
    with FakeTensorMode():
        times = [
            seconds(
                call(aten.mm.default, torch.empty(rows, k, dtype=dtype), torch.empty(k, n, dtype=dtype)), gpu
            )
            for rows in (m, 2 * m, 50 * m)
        ]
    assert times == sorted(times)


@pytest.mark.parametrize(("small", "large"), LARGER)
@given(
    flops=st.integers(0, 10**15),
    moved=st.integers(0, 10**12),
    rate=st.sampled_from(["float32", "tf32", "float16", "bfloat16"]),
)
def test_the_larger_gpu_is_never_slower(small, large, flops, moved, rate):
    work = Work(flops, moved, rate)
    assert seconds(work, find_gpu(large)) <= seconds(work, find_gpu(small))


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "4090", "NVIDIA GeForce RTX 4090", "rtx-4090 24GB"])
def test_a_gpu_by_any_spelling(name):
    assert find_gpu(name).name == "RTX 4090"


def test_a_memory_in_the_name_chooses():
    assert [find_gpu(name).memory // GIB for name in ("A100", "a100-80gb", "A100 40GB")] == [80, 80, 40]


@pytest.mark.parametrize(
    ("name", "close"), [("H1000", "h100"), ("RTX 4071", "rtx4070"), ("?", "plan machine --list")]
)
def test_an_unknown_gpu_is_one_line_with_close_names(name, close):
    with pytest.raises(InputError) as error:
        find_gpu(name)
    assert name in str(error.value)
    assert close in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_the_table_is_plausible(gpu):
    """Ridge points and memories lie where real GPUs have them: a slip of 10³ or of a column shows."""
    assert 6 * GIB <= gpu.memory <= 200 * GIB
    assert 2e11 <= gpu.bandwidth <= 8e12
    assert 4e12 <= gpu.float32 <= gpu.float16 <= 3e15
    assert 9 <= gpu.float32 / gpu.bandwidth <= 150
    assert 1.5e11 <= gpu.float32 / gpu.sms <= 1.4e12
    assert gpu.tf32 is None or gpu.float32 <= gpu.tf32 <= gpu.float16
    assert gpu.bfloat16 in (None, gpu.float16)
    assert (gpu.bfloat16 is None) == (gpu.tf32 is None) == (gpu.capability < (8, 0))
    assert gpu.float64 <= gpu.float32
    assert find_gpu(gpu.name) is gpu


def test_products_with_a_dtype_of_their_own_are_counted() -> None:
    a, b, sums = (
        torch.empty(4, 8, dtype=torch.bfloat16),
        torch.empty(8, 2, dtype=torch.bfloat16),
        torch.empty(4, 2),
    )
    assert work_of(aten.mm.dtype, (a, b, torch.float32), {}, sums).flops == 2 * 4 * 8 * 2
    assert work_of(aten.addmm.dtype, (sums, a, b, torch.float32), {}, sums).flops == 2 * 4 * 8 * 2
