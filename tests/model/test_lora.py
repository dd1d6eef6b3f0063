"""Adapters against peft's, and against counts by hand; autocast and attention as options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.model.file import ModelFile
from memplan.model.iteration import Iteration
from memplan.model.lora import LowRank, parse_low_rank, with_adapters
from memplan.model.variant import Variant
from memplan.planner.baseline import baseline
from memplan.profiling.profile.loops import adapted_layers, trained_elements
from memplan.program.graph import Cost, graph_of
from memplan.tracing.trace import trace
from memplan.updates.choice import OptimizerChoice, updated
from torch import Tensor, nn

WIDTH, LAYERS, VOCABULARY = 32, 2, 96


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=WIDTH, n_layer=LAYERS, n_head=2)
    config.use_cache = False
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=2, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=2,
    )  # fmt: skip
    return BertForSequenceClassification(config)


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gpt2": (gpt2, "CAUSAL_LM"),
    "llama": (llama, "CAUSAL_LM"),
    "bert": (bert, "SEQ_CLS"),
}


def inputs(name: str) -> dict[str, Tensor]:
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    return {"input_ids": tokens, "labels": tokens[:, 0] if name == "bert" else tokens}


def trained(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_weights_are_trained_as_peft_trains(name: str, dtype: torch.dtype) -> None:
    from peft import LoraConfig, get_peft_model

    make, task = MODELS[name]
    config = LoraConfig(r=4, target_modules="all-linear", task_type=task)
    theirs: Any = get_peft_model(make().to(dtype), config)
    adapted = make().to(dtype)
    with_adapters(adapted, LowRank(4))
    assert trained(adapted) == trained(theirs)
    adapters = [{p.dtype for n, p in one.named_parameters() if ".lora_" in n} for one in (adapted, theirs)]
    assert adapters[0] == adapters[1] == {torch.float32}


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_iteration_takes_as_much_memory_as_with_peft(name: str) -> None:
    from peft import LoraConfig, get_peft_model

    make, task = MODELS[name]
    adapted = make()
    with_adapters(adapted, LowRank(4))
    theirs: Any = get_peft_model(make(), LoraConfig(r=4, target_modules="all-linear", task_type=task))
    peaks, counts = [], []
    for module in (adapted, theirs):
        program = trace(updated(Iteration(module.train(), inputs(name)), OptimizerChoice("adamw")))
        graph = graph_of(program, [Cost(0.0)] * len(program.operations))
        peaks.append(baseline(graph).peak)
        counts.append(len(program.operations))
    assert counts[0] == counts[1]
    assert peaks[0] == peaks[1]


def test_the_counts_by_hand() -> None:
    """Of each layer of GPT-2: W to 3 W, W to W, W to 4 W, 4 W to W; per layer r (inputs + outputs)."""
    rank = 4
    per_layer = rank * WIDTH * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1))
    choice = OptimizerChoice("sgd")  # has no states by which the trained weights could be told
    for wanted, layers, count in (
        (LowRank(rank), 4, per_layer),
        (LowRank(rank, ("c_attn",)), 1, rank * WIDTH * 4),
        (LowRank(rank, ("c_fc", "c_attn")), 2, rank * WIDTH * 9),
    ):
        module = gpt2().train()
        whole = sum(parameter.numel() for parameter in module.parameters())
        with_adapters(module, wanted)
        program = trace(updated(Iteration(module, inputs("gpt2")), choice))
        assert len(adapted_layers(program)) == layers * LAYERS
        assert trained_elements(program) == (count * LAYERS, whole + count * LAYERS)


def test_the_result_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 3))
    before: Any = module[0]
    weight, x = before.weight.detach().clone(), torch.randn(2, 5)
    with_adapters(module, LowRank(2))
    adapted: Any = module[0]
    down, up = adapted.lora_A.weight, adapted.lora_B.weight
    expected = x @ (weight + 2.0 * up @ down).T + before.bias
    assert torch.allclose(module(x), expected, atol=1e-6)
    assert [name for name, p in module.named_parameters() if p.requires_grad] == [
        "0.lora_A.weight",
        "0.lora_B.weight",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("r=16", LowRank(16)),
        ("8", LowRank(8)),
        ("r=4, targets=q_proj+v_proj", LowRank(4, ("q_proj", "v_proj"))),
    ],
)
def test_a_rank_is_parsed(text: str, found: LowRank) -> None:
    assert parse_low_rank(text) == found


@pytest.mark.parametrize("text", ["r=0", "", "rank=4", "r=4,targets=", "r=4,to=q", "-1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write r=16, or r=16,targets=q_proj"):
        parse_low_rank(text)


@pytest.mark.parametrize(
    ("module", "wanted", "line"),
    [
        (nn.Sequential(nn.Conv1d(1, 1, 1)), LowRank(2), "has no linear layer to adapt: it has none"),
        (
            nn.Sequential(nn.Linear(2, 2)),
            LowRank(2, ("q",)),
            "no linear layer named q to adapt: its linear layers are named 0",
        ),
    ],
)
def test_what_can_not_be_adapted_is_refused(module: nn.Module, wanted: LowRank, line: str) -> None:
    with pytest.raises(InputError, match=line):
        with_adapters(module, wanted)


def test_adapters_are_added_once() -> None:
    module = gpt2()
    with_adapters(module, LowRank(2))
    with pytest.raises(InputError, match="has adapters already"):
        with_adapters(module, LowRank(2))


def test_options_change_what_a_model_file_builds() -> None:
    file = ModelFile("any.py", "build", lambda batch=4: (gpt2(), inputs("gpt2")))
    with_options = file._replace(variant=Variant(LowRank(2), "bf16", "eager"))
    built = with_options.build(2)
    assert built.autocast == torch.bfloat16
    module: Any = built.module
    assert module.config._attn_implementation == "eager"
    assert trained(module) == 2 * WIDTH * 16 * LAYERS
    assert file.build(2).autocast is None
    with pytest.raises(InputError, match="--attention is for models of transformers"):
        Variant(attention="sdpa").of(Iteration(nn.Sequential(nn.Linear(2, 2)), (torch.ones(1, 2),)))
