"""Adagrad of bitsandbytes, with states of 8 or 32 bits, paged or not: see eight_bit.py."""

from __future__ import annotations

from ..eight_bit import described

OPTIMIZER = described("Adagrad", ("lr", "weight_decay", "eps"), passes=4, paged=False)
