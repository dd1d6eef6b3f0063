"""Lion of bitsandbytes, with states of 8 or 32 bits, paged or not: see eight_bit.py."""

from __future__ import annotations

from ..eight_bit import described

OPTIMIZER = described("Lion", ("lr", "weight_decay", "betas"), passes=4)
