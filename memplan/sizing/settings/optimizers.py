"""Names that other tools give to optimizers, and memplan's for the same bytes of states."""

from __future__ import annotations

from .settings import Settings

_NAMES = {
    "adamw": "adamw adamw_hf adamw_torch adamw_torch_fused adamw_apex_fused adamw_torch_xla "
    "adamw_torch_npu_fused paged_adamw paged_adamw_32bit fusedadam deepspeedcpuadam",
    "adam": "adam",
    "adamw8bit": "adamw_8bit adamw_bnb_8bit adamw_torch_8bit paged_adamw_8bit ao_adamw_8bit "
    "adamw8bit pagedadamw8bit",
    "lion": "lion lion_32bit lion_pytorch paged_lion paged_lion_32bit",
    "lion8bit": "lion8bit pagedlion8bit lion_8bit paged_lion_8bit",
    "sgd": "sgd",
    "adafactor": "adafactor_torch",
    # In files of transformers `adafactor` is its own class, with factored states; torch's has another name.
    "adafactor_transformers": "adafactor",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop rmsprop_bnb rmsprop_bnb_32bit",
    "rmsprop8bit": "rmsprop8bit rmsprop_8bit rmsprop_bnb_8bit",
    "muon": "muon",
}
_KNOWN = {name: known for known, names in _NAMES.items() for name in names.split()}


def take_optimizer(settings: Settings, name: str | None, key: str) -> None:
    """Set the optimizer of a name; one that is not known is named. key: its key in the file."""
    if name is None:
        return
    found = _KNOWN.get(name.lower())
    if found is None:
        settings.uncounted.append(f"{key} {name}")
        return
    settings.take("optimizer", found, f"optimizer {name}")
    if "paged" in name.lower():
        settings.uncounted.append(f"{key} {name}: its states count as on the GPU")
