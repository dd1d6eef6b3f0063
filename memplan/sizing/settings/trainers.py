"""Files of trainers: axolotl's, TRL's and transformers' arguments, LLaMA-Factory's.

    axolotl          base_model, micro_batch_size, sequence_len, adapter: lora | qlora
    TRL              model_name_or_path, per_device_train_batch_size, max_length, use_peft
    LLaMA-Factory    model_name_or_path, cutoff_len, finetuning_type: lora, quantization_bit

References: the options' pages of axolotl 0.12, TRL 1 and LLaMA-Factory 0.9; transformers' TrainingArguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from .optimizers import take_optimizer
from .settings import Keys, Settings

_HALF = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}
_WEIGHTS = {"bf16": "bfloat16", "fp16": "float16"}
# Flash kernels keep what sdpa's keep for backward: no scores.
_ATTENTION = {
    "eager": "eager",
    **dict.fromkeys(("sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4"), "sdpa"),
}
_BOTH = (
    *("use_dora", "use_rslora_init", "activation_offloading", "torch_compile", "use_liger_kernel"),
    *("auto_find_batch_size", "neftune_noise_alpha", "galore_target_modules"),
)
_AXOLOTL = (
    *(
        "peft_use_dora",
        "lora_modules_to_save",
        "lora_on_cpu",
        "unfrozen_parameters",
        "relora",
        "lisa_n_layers",
    ),
    *("rl", "reward_model", "process_reward_model", "gptq", "tensor_parallel_size", "context_parallel_size"),
    *(
        "sequence_parallel_degree",
        "expert_parallel_size",
        "liger_cross_entropy",
        "liger_fused_linear_cross_entropy",
    ),
    *("cut_cross_entropy", "chunked_cross_entropy", "quantization", "qat", "fp8", "load_in_8bit"),
)
_TRL = (
    *("lora_modules_to_save", "load_in_8bit", "ref_model_mixup_alpha", "teacher_model_name_or_path"),
    *("reward_model_path", "sft_model_path", "use_vllm", "fp8", "use_cce"),
)
_CHECKPOINTING = "gradient checkpointing (a row of the other ways)"
_LLAMA_FACTORY = ("additional_target", "use_galore", "use_badam", "use_apollo", "use_unsloth", "ref_model")


def read_axolotl(keys: Keys, settings: Settings) -> None:
    settings.take("model", keys.text("base_model"), f"model {keys.text('base_model')}")
    _take_batches(keys, settings, ("micro_batch_size",), ("sequence_len",))
    half = "bf16" if keys.flag("bf16", "bfloat16") or keys.row.get("bf16") == "auto" else None
    half = half or ("fp16" if keys.flag("fp16", "float16") else None)
    _take_precision(settings, half, weights=half)
    adapter = keys.text("adapter")
    if adapter in ("lora", "qlora"):
        _take_lora(
            keys, settings, 8, ("lora_r",), ("lora_target_modules",), every=keys.flag("lora_target_linear")
        )
        if adapter == "qlora" or keys.flag("load_in_4bit"):
            settings.take("quantize", "nf4-nested", "frozen weights in 4 bits")
    elif adapter is not None:
        settings.uncounted.append(f"adapter {adapter}")
    take_optimizer(settings, keys.text("optimizer"), "optimizer")
    for key, attention in (
        ("flash_attention", "sdpa"),
        ("sdp_attention", "sdpa"),
        ("eager_attention", "eager"),
    ):
        if keys.flag(key):
            settings.take("attention", attention, key.replace("_", " "))
    _take_common(keys, settings, _AXOLOTL)
    if keys.value("fsdp", "fsdp_config"):
        settings.sharded = "FSDP"


def read_trl(keys: Keys, settings: Settings) -> None:
    """Read TRL's arguments, or transformers'. TRL's own defaults are float32 weights, bf16 and rank 16."""
    _take_model(keys, settings, ("max_length", "max_seq_length", "block_size"))
    named, fp16 = keys.value("dtype", "torch_dtype", "model_dtype"), keys.flag("fp16")
    half = "bf16" if keys.flag("bf16") or (keys.row.get("bf16") is None and not fp16) else None
    _take_precision(settings, "fp16" if fp16 else half, _HALF.get(str(named).removeprefix("torch.")))
    if "dtype" not in settings.options and keys.row.get("dtype") != "auto":
        settings.take("dtype", "float32", "weights in float32")
    if keys.flag("use_peft"):
        _take_lora(keys, settings, 16, ("lora_r",), ("lora_target_modules",))
        if keys.flag("load_in_4bit"):
            nested = keys.flag("use_bnb_nested_quant")
            settings.take("quantize", "nf4-nested" if nested else "nf4", "frozen weights in 4 bits")
    _take_attention(settings, keys.text("attn_implementation"), "attn_implementation")
    _take_rest(keys, settings, _TRL)


def read_arguments(keys: Keys, settings: Settings) -> None:
    """Read transformers' TrainingArguments of a script, whose code has made the model."""
    _take_batches(keys, settings, ("per_device_train_batch_size",), ())
    half = "bf16" if keys.flag("bf16") else "fp16" if keys.flag("fp16") else None
    settings.take("autocast", half, f"{half}")
    keys.expect(*keys.row)  # a dataclass has no misspelled key
    _take_rest(keys, settings, ("torch_compile",))
    if keys.flag("activation_checkpointing") and not keys.flag("gradient_checkpointing"):
        settings.said.append(_CHECKPOINTING)


def read_llama_factory(keys: Keys, settings: Settings) -> None:
    """Read LLaMA-Factory's arguments. Weights that are trained are in float32, unless `pure_bf16`."""
    _take_model(keys, settings, ("cutoff_len",))
    pure, kind = keys.flag("pure_bf16"), keys.text("finetuning_type") or "lora"
    half = "bf16" if pure or keys.flag("bf16") else "fp16" if keys.flag("fp16") else None
    _take_precision(settings, half, half if kind == "lora" or pure else None)
    if kind != "lora" and not pure:
        settings.take("dtype", "float32", "weights in float32")
    bits = keys.integer("quantization_bit")
    if kind == "lora":
        _take_lora(keys, settings, 8, ("lora_rank",), ("lora_target",))
        if bits == 4:
            settings.take("quantize", "nf4-nested", "frozen weights in 4 bits")
    elif kind != "full":
        settings.uncounted.append(f"finetuning_type {kind}")
    if bits not in (None, 4):
        settings.uncounted.append(f"quantization_bit {bits}")
    attention = keys.text("flash_attn")
    _take_attention(settings, "flash_attention_2" if attention == "fa2" else attention, "flash_attn")
    _take_rest(keys, settings, _LLAMA_FACTORY)


def _take_model(keys: Keys, settings: Settings, length: Sequence[str]) -> None:
    model = keys.text("model_name_or_path")
    settings.take("model", model, f"model {model}")
    _take_batches(keys, settings, ("per_device_train_batch_size",), length)


def _take_attention(settings: Settings, name: str | None, key: str) -> None:
    if name in _ATTENTION:
        settings.take("attention", _ATTENTION[name], f"attention {name}")
    elif name is not None and name != "disabled":
        settings.uncounted.append(f"{key} {name}")


def _take_rest(keys: Keys, settings: Settings, others: Sequence[str]) -> None:
    take_optimizer(settings, keys.text("optim"), "optim")
    _take_common(keys, settings, others)
    if keys.value("fsdp", "fsdp_config"):
        settings.sharded = "FSDP"


def _take_batches(keys: Keys, settings: Settings, batch: Sequence[str], length: Sequence[str]) -> None:
    found, steps = keys.integer(*batch), keys.integer("gradient_accumulation_steps")
    settings.take("batch", found, f"micro-batch {found}")
    settings.take("accumulate", steps, f"accumulation {steps}")
    tokens = keys.integer(*length)
    settings.take("length", tokens, f"{tokens or 0:,} tokens a sample")


def _take_precision(settings: Settings, half: str | None, weights: str | None) -> None:
    """Set autocast's dtype, and that of the weights. half, weights: bf16, fp16, or None."""
    settings.take("autocast", half, f"{half}")
    settings.take("dtype", weights and _WEIGHTS[weights], f"weights in {weights and _WEIGHTS[weights]}")


def _take_lora(
    keys: Keys,
    settings: Settings,
    default: int,
    rank: Sequence[str],
    targets: Sequence[str],
    *,
    every: bool = False,
) -> None:
    found, names = keys.integer(*rank) or default, keys.texts(*targets)
    if len(names) == 1:
        names = [name.strip() for name in names[0].split(",")]
    all_linear = every or names in (["all-linear"], ["all"])
    last = [] if all_linear else list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    if any(not name.replace("_", "").isalnum() for name in last):
        settings.uncounted.append(f"{targets[0]} {', '.join(names)}: all linear layers are counted")
        last = []
    elif not last and not all_linear:
        settings.uncounted.append(
            f"{targets[0]}: none is named, so all linear layers are counted, more than peft's own"
        )
    text = f"r={found}" + (f",targets={'+'.join(last)}" if last else "")
    settings.take("lora", text, f"LoRA r={found}" + (f" on {', '.join(last)}" if last else ""))


def _take_common(keys: Keys, settings: Settings, others: Sequence[str]) -> None:
    if keys.flag("gradient_checkpointing"):
        settings.said.append(_CHECKPOINTING)
    keys.expect("lora_r", "lora_rank", "lora_target_modules", "lora_target_linear", "lora_target")
    keys.expect("load_in_4bit", "use_bnb_nested_quant", "lora_target_parameters", "eval_attn_implementation")
    settings.includes += keys.texts("deepspeed") if isinstance(keys.value("deepspeed"), str) else []
    settings.uncounted += keys.present((*_BOTH, *others))
    settings.uncounted += keys.misspelled()
