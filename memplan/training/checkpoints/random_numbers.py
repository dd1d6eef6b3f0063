"""The random number generators that a training loop draws from: of PyTorch, Python and NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_numbers() -> dict[str, Any]:
    """Return the generators' states, of all CUDA devices too.

    They have types that `torch.load(weights_only=True)` reads.
    """
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": (kind, torch.tensor(keys.astype(np.int64), device="cpu"), *rest),  # pyright: ignore[reportAttributeAccessIssue]
    }


def set_random_numbers(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))


def are_random_numbers(states: Any) -> bool:
    """Tell whether `set_random_numbers` accepts these states, by setting them on new generators."""
    try:
        torch.Generator().set_state(states["torch"])
        if not all(isinstance(state, torch.Tensor) for state in states["cuda"]):
            return False
        version, numbers, gauss = states["python"]
        random.Random().setstate((version, tuple(numbers), gauss))
        kind, keys, *rest = states["numpy"]
        np.random.RandomState().set_state((kind, keys.numpy().astype(np.uint32), *rest))
    except Exception:
        return False
    return True
