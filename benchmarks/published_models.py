"""The modules of published rows: from transformers, timm or torchvision, with random weights."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

Row = dict[str, Any]


def model_of(row: Row, batch: int) -> tuple[Any, ...]:
    """Return the row's module and inputs."""
    import torch

    torch.set_float32_matmul_precision("high" if row["tf32"] else "highest")
    library = row["model"]["library"]
    module, inputs, loss = (_text_model if library == "transformers" else _image_model)(row, batch)
    dtype = getattr(torch, row["dtype"])
    module = module.to(dtype).train()
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    if row["channels_last"]:
        module = module.to(memory_format=torch.channels_last)
        inputs = {
            name: value.to(memory_format=torch.channels_last) if value.dim() == 4 else value
            for name, value in inputs.items()
        }
    if row["quantize"]:
        module = _quantised(module, row).train()
    elif row["lora"] and row["lora"].get("adapters"):
        _add_adapters(module, row["lora"])
    elif row["lora"]:
        from peft import LoraConfig, get_peft_model

        rank, targets = row["lora"]["r"], row["lora"]["targets"]
        kind = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")
        # Else peft makes the adapters of half weights float32.
        own = row["lora"].get("dtype") is None
        module = get_peft_model(module, kind, autocast_adapter_dtype=own).train()
    if row["attention"] == "efficient":
        module.forward = _efficient_attention(module.forward)
    if row["norms"] == "by-hand":
        _norms_by_hand(module)
    if row["masters"]:
        _with_masters(module, dtype)
    if row["fused_loss"]:
        return _with_fused_loss(module, row["fused_loss"]), inputs
    if row["chunks"]:
        return _in_chunks(module, row["chunks"]), inputs
    if row["logits"]:
        return _with_loss_of_logits(module, row["logits"].split(), row["autocast"]), inputs
    return _wrapped(module, loss, row["autocast"]), inputs


def _add_adapters(module: Any, lora: Row) -> None:
    """Give linear layers several adapters, all trained, of which the batch uses the first."""
    import torch
    from torch.nn import functional

    class Adapted(torch.nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            form = {"dtype": base.weight.dtype, "device": base.weight.device}
            self.base_layer = base
            down = (lora["adapters"], lora["r"], base.in_features)
            up = (lora["adapters"], base.out_features, lora["r"])
            self.lora_A = torch.nn.Parameter(torch.empty(down, **form))
            self.lora_B = torch.nn.Parameter(torch.empty(up, **form))

        def forward(self, x: Any) -> Any:
            low = functional.linear(x, self.lora_A[0])
            return self.base_layer(x) + 2.0 * functional.linear(low, self.lora_B[0])

    for parameter in module.parameters():
        parameter.requires_grad = False
    for part in list(module.modules()):
        for name, layer in list(part.named_children()):
            if name in lora["targets"]:
                setattr(part, name, Adapted(layer))


def _with_loss_of_logits(module: Any, words: list[str], autocast: str | None) -> Any:
    """Return the language model with a loss of its logits, which are outputs.

    words: `float32`: the logits are cast. `shifted`: the loss copies all but the last token's.
    Without autocast the loss is computed in the logits' dtype.
    """
    import torch
    from torch.nn import functional

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, input_ids: Any, labels: Any) -> Any:
            with torch.autocast("cuda", getattr(torch, autocast or "bfloat16"), enabled=autocast is not None):
                logits = self.model(input_ids=input_ids).logits
                if "float32" in words:
                    logits = logits.float()
                judged, wanted = logits, labels
                if "shifted" in words:
                    judged, wanted = logits[:, :-1].contiguous(), labels[:, 1:]
                loss = functional.cross_entropy(judged.flatten(0, 1), wanted.flatten())
            return {"loss": loss, "logits": logits}

    return Whole()


def _norms_by_hand(module: Any) -> None:
    """Replace each LayerNorm by one of separate operators."""
    import torch

    class Norm(torch.nn.Module):
        def __init__(self, norm: Any) -> None:
            super().__init__()
            self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

        def forward(self, x: Any) -> Any:
            centred = x - x.mean(-1, keepdim=True)
            deviation = torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + self.eps)
            return self.weight * (centred / deviation) + self.bias

    for part in list(module.modules()):
        for name, layer in list(part.named_children()):
            if isinstance(layer, torch.nn.LayerNorm):
                setattr(part, name, Norm(layer))


def _with_masters(module: Any, dtype: Any) -> None:
    """Make all parameters float32, which each module casts for itself, as FSDP2's mixed precision does."""
    import torch
    from torch.nn.utils import parametrize

    class Cast(torch.nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight.to(dtype)

    for part in list(module.modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            parameter.data = parameter.data.float()
            parametrize.register_parametrization(part, name, Cast(), unsafe=True)


def _in_chunks(module: Any, count: int) -> Any:
    """Return the language model with its loss in chunks of tokens, which checkpoints of layers recompute."""
    import torch
    from torch.nn import functional

    causal = module.get_base_model() if hasattr(module, "get_base_model") else module

    class Chunk(torch.nn.Module):
        def forward(self, hidden: Any, weight: Any, labels: Any) -> Any:
            logits = functional.linear(hidden, weight).float()
            return functional.cross_entropy(logits, labels, reduction="sum")

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = module
            self.chunks = torch.nn.ModuleList(Chunk() for _ in range(count))

        def forward(self, input_ids: Any, labels: Any) -> Any:
            hidden = causal.model(input_ids=input_ids).last_hidden_state.flatten(0, 1)
            weight, labels = causal.lm_head.weight, labels.flatten()
            parts = zip(self.chunks, hidden.chunk(count), labels.chunk(count), strict=True)
            return {
                "loss": sum(chunk(part, weight, wanted) for chunk, part, wanted in parts) / labels.numel()
            }

    return Whole()


def _with_fused_loss(module: Any, count: int) -> Any:
    """Return the language model with a loss whose forward makes the gradients too, by chunks of tokens.

    Liger's fused linear cross entropy does so: nothing but the gradients of the last layer's output and of
    its weights waits for backward.
    """
    import torch
    from torch.nn import functional

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Any, weight: Any, labels: Any) -> Any:
            loss, gradients, total = hidden.new_zeros((), dtype=torch.float32), [], torch.zeros_like(weight)
            for part, wanted in zip(hidden.chunk(count), labels.chunk(count), strict=True):
                logits = functional.linear(part, weight)
                loss = loss + functional.cross_entropy(logits.float(), wanted, reduction="sum")
                share = functional.softmax(logits.float(), -1).to(hidden.dtype)
                share = share.scatter_add(1, wanted[:, None], share.new_full((len(wanted), 1), -1.0))
                share = share / labels.numel()
                gradients.append(share @ weight)
                total += share.t() @ part
            ctx.save_for_backward(torch.cat(gradients), total)
            return loss / labels.numel()

        @staticmethod
        def backward(ctx: Any, *_one: Any) -> Any:
            return (*ctx.saved_tensors, None)  # the loss is what backward begins with: times one

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = module

        def forward(self, input_ids: Any, labels: Any) -> Any:
            hidden = module.model(input_ids=input_ids).last_hidden_state.flatten(0, 1)
            return {"loss": Fused.apply(hidden, module.lm_head.weight, labels.flatten())}

    return Whole()


def _quantised(module: Any, row: Row) -> Any:
    """Return the module with linear layers in 4 bits, adapters, and other weights in the row's dtype."""
    import torch
    from memplan.model.lora import LowRank, with_adapters

    # peft's adapters would look for bitsandbytes' layers, which need the weights' values.
    with_adapters(module, LowRank(row["lora"]["r"], tuple(row["lora"]["targets"])), row["quantize"]["kind"])
    other = getattr(torch, row["quantize"]["others"])
    for parameter in module.parameters():
        if parameter.is_floating_point() and not parameter.requires_grad:
            parameter.data = parameter.data.to(other)
    return module


def _efficient_attention(forward: Any) -> Any:
    """Return a forward whose attention is the memory-efficient kernel, by keys and values for each head."""
    from unittest.mock import patch

    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    usual = functional.scaled_dot_product_attention

    def repeated(query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        groups = query.size(-3) // key.size(-3)
        key, value = (one.repeat_interleave(groups, dim=-3) for one in (key, value))
        return usual(query, key, value, *args, **{**options, "enable_gqa": False})

    def limited(*args: Any, **options: Any) -> Any:
        with (
            sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION),
            patch.object(functional, "scaled_dot_product_attention", repeated),
        ):
            return forward(*args, **options)

    return limited


def _text_model(row: Row, batch: int) -> tuple[Any, dict[str, Any], Any]:
    import torch
    import transformers

    spec, length = row["model"], row["length"]
    kind = getattr(transformers, spec["class"])
    attention = "sdpa" if row["attention"] == "efficient" else row["attention"]
    extra = {} if kind.config_class.model_type == "t5" else {"attn_implementation": attention}
    config = kind.config_class(**spec["config"], **extra)
    config.use_cache = False
    if spec["class"].endswith("ImageClassification"):
        pixels = torch.zeros(batch, 3, spec["size"], spec["size"])
        return kind(config), {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.int64)}, None
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    if spec["class"].endswith("QuestionAnswering"):
        ends = {name: torch.zeros(batch, dtype=torch.int64) for name in ("start_positions", "end_positions")}
        return kind(config), {"input_ids": tokens, **ends}, None
    shape = (batch, length) if not spec["class"].endswith("Classification") else (batch,)
    return kind(config), {"input_ids": tokens, "labels": torch.zeros(shape, dtype=torch.int64)}, None


def _image_model(row: Row, batch: int) -> tuple[Any, dict[str, Any], Any]:
    import torch

    if not _LIBRARIES and find_spec("torchvision") and not _imports("torchvision"):
        # Its kernels are those of another PyTorch; it describes two of their operators when imported.
        _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _LIBRARIES[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    name, size = row["model"]["name"], row["model"].get("size", 224)
    if row["model"]["library"] == "timm":
        import timm

        timm.layers.set_fused_attn(row["attention"] != "eager")
        module = timm.create_model(name)
    else:
        import torchvision

        module = getattr(torchvision.models, name)()
    inputs = {"x": torch.zeros(batch, 3, size, size), "labels": torch.zeros(batch, dtype=torch.int64)}
    return module, inputs, torch.nn.CrossEntropyLoss()


_LIBRARIES: list[Any] = []


def _imports(name: str) -> bool:
    try:
        import_module(name)
    except RuntimeError:
        return False
    return True


def _wrapped(module: Any, loss: Any, autocast: str | None) -> Any:
    """Return the module with its loss, in autocast if the row has it."""
    import torch

    mixed, dtype = autocast is not None, getattr(torch, autocast or "bfloat16")

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, **inputs: Any) -> Any:
            with torch.autocast("cuda", dtype=dtype, enabled=mixed):
                if loss is None:
                    found = self.model(**inputs)
                    return {name: value for name, value in found.items() if name.endswith(("loss", "logits"))}
                return loss(self.model(inputs["x"]), inputs["labels"])

    return Whole()
