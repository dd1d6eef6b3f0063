"""Small language models of transformers: by name, functions that return an Iteration."""

from typing import Any

import torch
from memplan.model.iteration import Iteration
from strangers_tiny import BART, GROUPED, TINY, configured, made_by, tokens, understood

GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
EXPERTS = {
    **GROUPED,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
DEEPSEEK = {
    **TINY,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
COMMON = {
    **GROUPED,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "sliding_window": 8,
    "layerdrop": 0.0,
}
DECODERS = (
    "afmoe apertus aria_text biogpt bitnet cohere cohere2 cpmant ctrl diffllama exaone4 gemma glm4 "
    "gpt_bigcode granite helium jetmoe minimax mpt nemotron olmoe openai-gpt persimmon phi phimoe qwen2 "
    "qwen2_moe smollm3 stablelm starcoder2 xglm"
)
ENCODERS = "convbert deberta ernie ibert luke mobilebert mpnet mra nystromformer roformer yoso"
TRANSLATORS = (
    "bigbird_pegasus blenderbot fsmt led longt5 m2m_100 mbart mt5 mvp nllb-moe pegasus prophetnet "
    "switch_transformers"
)
SEQUENCES = {
    **BART,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 64,
    "d_kv": 8,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "attention_window": 8,
    "attention_type": "original_full",
    "num_experts": 4,
    "expert_capacity": 8,
    "langs": ["a", "b"],
    "src_vocab_size": 64,
    "tgt_vocab_size": 64,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "hidden_size": 32,
    "local_radius": 4,
}


def language(kind, options, dtype=None, **others):
    """A causal language model."""
    module = configured("AutoModelForCausalLM", kind, options, **others)
    ids = tokens(4, 24)
    return Iteration(module if dtype is None else module.to(dtype), {"input_ids": ids, "labels": ids})


def masked(kind, options, **others):
    ids = tokens(4, 24)
    module = configured("AutoModelForMaskedLM", kind, options, **others)
    return Iteration(module, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


def translation(kind, options, **others):
    ids = tokens(4, 16)
    return Iteration(
        configured("AutoModelForSeq2SeqLM", kind, options, **others), {"input_ids": ids, "labels": ids}
    )


def experts(kind, dtype=None, how=None, **others):
    iteration = language(kind, EXPERTS, dtype, **others)
    if how is not None:
        module: Any = iteration.module
        module.set_experts_implementation(how)
    return iteration


def decoder(kind):
    module = configured("AutoModelForCausalLM", kind, understood(kind, COMMON))
    ids = tokens(4, 24)
    return Iteration(module, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


def sentences(kind):
    """With an attention mask: some are shorter."""
    ids, mask = tokens(4, 16), torch.ones(4, 16, dtype=torch.int64)
    mask[1, 12:] = 0
    module = configured(
        "AutoModelForSeq2SeqLM", kind, understood(kind, SEQUENCES) | {"decoder_start_token_id": 0}
    )
    return Iteration(module, {"input_ids": ids, "attention_mask": mask, "labels": ids})


def answers(kind):
    """The ends of an answer in a text."""
    module = configured(
        "AutoModelForQuestionAnswering", kind, understood(kind, TINY | {"embedding_size": 16})
    )
    ends = torch.randint(20, (2, 4))
    return Iteration(
        module, {"input_ids": tokens(4, 24), "start_positions": ends[0], "end_positions": ends[1]}
    )


def perceiver():
    module = configured(
        "AutoModelForMaskedLM",
        "perceiver",
        {
            "vocab_size": 64,
            "d_model": 32,
            "d_latents": 32,
            "num_latents": 8,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
            "max_position_embeddings": 24,
        },
    )
    ids = tokens(4, 24)
    return Iteration(module, {"inputs": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


def frozen_lora():
    """peft's adapters in a LLaMA whose own weights are frozen."""
    import peft

    iteration = language("llama", GROUPED)
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    return iteration._replace(module=peft.get_peft_model(iteration.module, settings).train())


def checkpointed(iteration):
    iteration.module.gradient_checkpointing_enable()
    return iteration


def compiled(iteration):
    return iteration._replace(module=torch.compile(iteration.module))


TEXT = {
    **made_by(decoder, DECODERS),
    **made_by(lambda kind: masked(kind, understood(kind, COMMON | {"embedding_size": 16})), ENCODERS),
    **made_by(sentences, TRANSLATORS),
    "gpt2": lambda: language("gpt2", GPT),
    "codegen": lambda: language("codegen", GPT),
    "gpt_neo": lambda: language(
        "gpt_neo", TINY, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8
    ),
    "recurrent_gemma": lambda: language("recurrent_gemma", GROUPED, attention_window_size=8, use_cache=False),
    "gptj": lambda: language("gptj", GPT),
    "gpt_neox": lambda: language("gpt_neox", TINY),
    "opt": lambda: language("opt", TINY, ffn_dim=64, word_embed_proj_dim=32, layerdrop=0.0),
    "bloom": lambda: language("bloom", TINY, n_layer=2, n_head=4),
    "llama": lambda: language("llama", GROUPED),
    "llama bf16": lambda: language("llama", GROUPED, torch.bfloat16),
    "mistral": lambda: language("mistral", GROUPED, sliding_window=8),
    "qwen3": lambda: language("qwen3", GROUPED),
    "gemma2": lambda: language("gemma2", GROUPED, sliding_window=8),
    "gemma3": lambda: language("gemma3_text", GROUPED, sliding_window=8),
    "phi3": lambda: language("phi3", GROUPED),
    "falcon": lambda: language("falcon", TINY),
    "olmo2": lambda: language("olmo2", GROUPED),
    "mamba": lambda: language("mamba", TINY, state_size=4),
    "mamba2": lambda: language(
        "mamba2", TINY, state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=8
    ),
    "rwkv": lambda: language("rwkv", TINY, attention_hidden_size=32),
    "mixtral": lambda: experts("mixtral"),
    "mixtral batched": lambda: experts("mixtral", how="batched_mm"),
    "mixtral bf16": lambda: experts("mixtral", torch.bfloat16),
    "qwen3_moe": lambda: experts("qwen3_moe"),
    "qwen3_moe bf16": lambda: experts("qwen3_moe", torch.bfloat16),
    "deepseek_v3": lambda: language("deepseek_v3", DEEPSEEK),
    "deepseek_v3 bf16": lambda: language("deepseek_v3", DEEPSEEK, torch.bfloat16),
    "gpt_oss": lambda: experts("gpt_oss"),
    "gpt_oss bf16": lambda: experts("gpt_oss", torch.bfloat16),
    "bert": lambda: masked("bert", TINY),
    "roberta": lambda: masked("roberta", TINY),
    "albert": lambda: masked("albert", TINY, embedding_size=16),
    "electra": lambda: masked("electra", TINY, embedding_size=16),
    "distilbert": lambda: masked(
        "distilbert", {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    ),
    "deberta_v2": lambda: masked("deberta-v2", TINY, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "modernbert": lambda: masked("modernbert", TINY, sep_token_id=1, cls_token_id=0),
    "longformer": lambda: masked("longformer", TINY, attention_window=8),
    "big_bird": lambda: masked("big_bird", TINY, attention_type="original_full"),
    "funnel": lambda: masked(
        "funnel",
        {"vocab_size": 64, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
    ),
    "squeezebert": lambda: masked("squeezebert", TINY, embedding_size=32),
    "esm": lambda: masked("esm", TINY, mask_token_id=3, token_dropout=False),
    "fnet": lambda: masked("fnet", TINY),
    "xlnet": lambda: language(
        "xlnet", {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
    ),
    "t5": lambda: translation("t5", T5, decoder_start_token_id=0),
    "bart": lambda: translation("bart", BART),
    "marian": lambda: translation("marian", BART),
    "bert questions": lambda: answers("bert"),
    "perceiver": perceiver,
    "llama lora": frozen_lora,
    "llama checkpointed": lambda: checkpointed(language("llama", GROUPED)),
    "llama compiled": lambda: compiled(language("llama", GROUPED)),
}
