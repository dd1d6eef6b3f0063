"""SGD with momentum of bitsandbytes, with states of 8 or 32 bits, paged or not: see eight_bit.py."""

from __future__ import annotations

from ..eight_bit import described

OPTIMIZER = described("SGD", ("lr", "weight_decay", "momentum"), passes=4, paged=False, lr=1e-3, momentum=0.9)
