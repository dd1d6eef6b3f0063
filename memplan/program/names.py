"""Names for operations and storages: readable, unique, the same whenever the same model is traced."""

from __future__ import annotations

from typing import Any

from ..graphs.graph import Phase


class Names:
    """Names that are each handed out once: `h.0.mlp/addmm`, then `h.0.mlp/addmm_2`."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def unique(self, name: str) -> str:
        while True:
            times = self._times[name] = self._times.get(name, 0) + 1
            if times == 1:
                return name
            candidate = f"{name}_{times}"
            if candidate not in self._times:  # a layer's own name may end in _2
                self._times[candidate] = 1
                return candidate


def operation_name(target: Any, layer: str | None, phase: Phase) -> str:
    """Return `h.0.mlp/addmm`; in other phases `h.0.mlp/backward/mm`."""
    parts = (layer, "" if phase == Phase.FORWARD else phase.word, short_name(target))
    return "/".join(part for part in parts if part)


def short_name(target: Any) -> str:
    """Return `addmm` for aten.addmm.default."""
    packet = getattr(target, "overloadpacket", target)
    return packet.__name__


def full_name(target: Any) -> str:
    """Return `aten.addmm.default`; `memplan.dropout_mask` for an operation of this package."""
    return str(target) if hasattr(target, "overloadpacket") else f"memplan.{target.__name__}"
