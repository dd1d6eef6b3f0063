"""Weights of bitsandbytes in 4 and 8 bits: planned, bit by bit as the same loop in eager PyTorch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from memplan.planner.schedule.schedule import Verb
from torch import Tensor, nn

bitsandbytes: Any = pytest.importorskip("bitsandbytes")

pytestmark = pytest.mark.filterwarnings("ignore")


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def network(kind: str, *, nested: bool, dtype: torch.dtype, bias: bool = True) -> nn.Sequential:
    """Two frozen layers in 4 bits between trained ones, and the loss."""
    torch.manual_seed(0)
    options = {"compute_dtype": dtype, "quant_type": kind, "compress_statistics": nested, "bias": bias}
    frozen = [bitsandbytes.nn.Linear4bit(*shape, **options) for shape in ((64, 128), (128, 64))]
    for layer in frozen:
        layer.requires_grad_(False)
    return nn.Sequential(nn.Linear(32, 64), frozen[0], nn.GELU(), frozen[1], nn.Linear(64, 4), Mean()).to(
        "cpu"
    )


def check_training(module: nn.Module, x: Tensor, iterations: int = 3, **options: Any) -> memplan.Step:
    baseline = copy.deepcopy(module)
    first, second = (
        torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.01) for m in (module, baseline)
    )
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False}
    step = memplan.optimize(module, (x,), optimizer=first, **(given | options))
    for _ in range(iterations):
        loss = baseline(x)
        loss.backward()
        second.step()
        second.zero_grad()
        assert torch.equal(step(x), loss)
    step.restore_to_device()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), baseline.parameters(), strict=True))
    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_4_bit_layers_are_planned(kind: str, nested: bool, dtype: torch.dtype) -> None:
    step = check_training(network(kind, nested=nested, dtype=dtype), torch.randn(16, 32))
    program = step.plans[0].program
    storages = {
        name: program.storages[program.values[v].storage].bytes for name, v in program.buffers.items()
    }
    # 8192 weights: a number per 64 of them; nested, a byte, and a number per 256 of those.
    found = {"1.weight.quant_state.absmax": 128 * (1 if nested else 4), "1.weight.quant_state.code": 16 * 4}
    if nested:
        found |= {"1.weight.quant_state.offset": 4, "1.weight.quant_state.state2.absmax": 4}
        found |= {"1.weight.quant_state.state2.code": 256 * 4}
    assert {name: bytes_ for name, bytes_ in storages.items() if name.startswith("1.")} == found
    codes = program.storages[program.values[program.parameters["1.weight"]].storage]
    assert codes.bytes == 64 * 128 // 2
    made = [operation.name for operation in program.operations if "dequantize_4bit" in operation.name]
    assert {*made} >= {"1/dequantize_4bit", "1/backward/dequantize_4bit"}


@pytest.mark.scripts
@pytest.mark.parametrize("budget", ["80%", "60%"])
def test_codes_and_scales_wait_in_host_memory(budget: str) -> None:
    module = network("nf4", nested=True, dtype=torch.float32, bias=False)
    machine = Machine(links=Links(1e9, 1e9))
    step = check_training(module, torch.randn(16, 32), machine=machine, solver="l2l", budget="95%")
    program, schedule = step.plans[0].program, step.plans[0].schedule
    moves = {
        (Verb(verb), program.storages[x].name)
        for verb, x in zip(schedule.verbs.tolist(), schedule.targets.tolist(), strict=True)
        if verb != Verb.COMPUTE
    }
    quantised = {name for _verb, name in moves if name.startswith(("1.weight", "3.weight"))}
    assert quantised >= {"1.weight", "1.weight.quant_state.absmax", "1.weight.quant_state.state2.absmax"}
    # Frozen, they go one way: a copy stays on the host.
    assert {verb for verb, name in moves if name in quantised} == {Verb.PREFETCH, Verb.DELETE}
    check_training(module, torch.randn(16, 32), machine=machine, solver="auto", budget=budget, time_limit=1)


def test_weights_may_be_replaced() -> None:
    module, x = network("nf4", nested=True, dtype=torch.float32, bias=False), torch.randn(16, 32)
    step = check_training(module, x, iterations=1)

    def replace(plans: int, **options: Any) -> None:
        options = {"quant_type": "nf4", "blocksize": 64, "module": module[1]} | options
        module[1].weight = bitsandbytes.nn.Params4bit(torch.randn(128, 64), **options).to("cpu")
        baseline = copy.deepcopy(module)
        assert torch.equal(step(x), baseline(x))
        assert len(step.plans) == plans

    replace(1)
    replace(2, blocksize=128)
    replace(3, compress_statistics=False)
    module[1].weight.quant_state.absmax.mul_(2)  # pyright: ignore
    baseline = copy.deepcopy(module)
    assert torch.equal(step(x), baseline(x))


def test_evaluation_that_would_repack_weights_is_refused() -> None:
    module, x = network("nf4", nested=False, dtype=torch.float32, bias=False), torch.randn(16, 32)
    step = check_training(module, x, iterations=1)
    layers = [each for each in module if isinstance(each, bitsandbytes.nn.Linear4bit)]
    if layers[0].support_avx512bf16_for_cpu:
        with pytest.raises(memplan.MemplanError, match="support_avx512bf16_for_cpu = False on every"):
            step.evaluate(x)
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False  # pyright: ignore
    baseline = copy.deepcopy(module).eval()
    assert torch.equal(step.evaluate(x).loss, baseline(x))
    check = copy.deepcopy(module)
    assert torch.equal(step(x), check(x))


def network_in_8_bits(threshold: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    options = {"has_fp16_weights": False, "threshold": threshold}
    frozen = [bitsandbytes.nn.Linear8bitLt(*shape, **options) for shape in ((64, 128), (128, 64))]
    for layer in frozen:
        layer.requires_grad_(False)
    return nn.Sequential(nn.Linear(32, 64), frozen[0], nn.GELU(), frozen[1], nn.Linear(64, 4), Mean()).to(
        "cpu"
    )


def test_8_bit_layers_are_planned_before_and_after_their_first_forward(tmp_path: Path) -> None:
    module, x = network_in_8_bits(6.0), torch.randn(16, 32)
    used = copy.deepcopy(module)
    used(x)
    check_training(used, x)
    step = check_training(module, x)
    program = step.plans[0].program
    storages = {
        name: program.values[v].storage for name, v in {**program.parameters, **program.buffers}.items()
    }
    assert storages["1.weight"] == storages["1.state.CB"]
    names = ("1.weight", "1.state.SCB")
    assert [program.storages[storages[name]].bytes for name in names] == [64 * 128, 128 * 4]
    module(x)  # eager PyTorch's own iterations may come between
    module[1].state.SCB.mul_(2)  # pyright: ignore
    step.save(tmp_path)
    baseline = copy.deepcopy(module)
    assert torch.equal(step(x), baseline(x))
    other = network_in_8_bits(6.0)
    other[1].weight.data.zero_()  # pyright: ignore
    resumed = check_training(other, x, iterations=1)
    resumed.load(tmp_path)
    assert torch.equal(resumed(x), baseline(x))


@pytest.mark.scripts
def test_evaluation_in_8_bits_is_planned_without_outliers() -> None:
    module, x = network_in_8_bits(), torch.randn(16, 32)
    step = check_training(module, x, iterations=1)
    baseline = copy.deepcopy(module).eval()
    assert torch.equal(step.evaluate(x).loss, baseline(x))
    with_outliers = check_training(network_in_8_bits(6.0), x, iterations=1)
    with pytest.raises(memplan.MemplanError, match=r"picks columns by the values .* llm_int8_threshold=0.0"):
        with_outliers.evaluate(x)
    with torch.no_grad():
        module.eval()(x)
    module.train()
    baseline = copy.deepcopy(module)
    assert torch.equal(step(x), baseline(x))


@pytest.mark.scripts
@pytest.mark.parametrize("bits", [4, 8])
def test_lora_over_quantised_weights_is_planned(bits: int) -> None:
    peft: Any = pytest.importorskip("peft")
    x = torch.randn(16, 32)
    for dora in (False, True)[: 8 // bits]:  # peft's DoRA over 8 bits fails in eager PyTorch, too
        four = network("nf4", nested=True, dtype=torch.float32, bias=False)
        module = four if bits == 4 else network_in_8_bits()
        config = peft.LoraConfig(r=4, target_modules=["1", "3"], use_dora=dora, lora_dropout=0.0)
        check_training(peft.get_peft_model(module, config), x)
