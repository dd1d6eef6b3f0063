"""Prices of GPUs per hour: `--price 1.20/h`, or `--price a100=1.80,t4=0.35` for several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..graphs.errors import InputError
from ..graphs.machines.presets import Preset, find_preset

_PRICE = re.compile(r"(?:([^=]+)=)?(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})(?:/h)?")
_FORM = "write 1.20/h, or a100=1.80/h,t4=0.35/h for several GPUs"


def parse_prices(text: str | None, chosen: Sequence[Preset]) -> Mapping[str, float]:
    """Return prices per hour by the machine's name, in whatever currency the user has. Raises InputError.

    text: None for none.
    """
    prices: dict[str, float] = {}
    if text is None:
        return prices
    # A preset's own name wins over that of a GPU in several presets.
    known = {one.gpu.name: one.name for one in chosen} | {one.name: one.name for one in chosen}
    for part in text.split(","):
        match = _PRICE.fullmatch(part.strip())
        # A price of 0 would make samples per price infinite.
        if match is None or not float(match[2]):
            raise InputError(f"--price {part.strip()!r} is not a price per hour: {_FORM}")
        name, price = match[1], float(match[2])
        if name is None:
            if len(chosen) > 1 or "," in text:
                raise InputError(f"--price {part.strip()!r} names no GPU, and there are several: {_FORM}")
            return {chosen[0].name: price}
        preset = find_preset(name.strip())
        found = known.get(preset.name) or known.get(preset.gpu.name)
        if found is None:
            raise InputError(f"--price names {name.strip()}, which is none of the GPUs of --gpu")
        prices[found] = price
    return prices
