"""A warning for loops whose calls are often traced anew, which costs seconds each."""

from __future__ import annotations

from collections import deque

from ...torch_support.unsupported import warn_user

# Fewer are usual: the first batches of a loop have new lengths, its last one is shorter.
_CALLS, _MANY = 5, 3


class TraceWatch:
    """The last calls of a step or a function: which of them were traced anew."""

    def __init__(self) -> None:
        self._last = deque[bool](maxlen=_CALLS)
        self._said = False

    def note(self, reason: str | None) -> None:
        """Note a call, and warn once if many of the last ones were traced.

        reason: why no plan that was there could take it; None if one did.
        """
        self._last.append(reason is not None)
        if reason is not None and not self._said and sum(self._last) >= _MANY:
            self._said = True
            warn_user(
                f"{sum(self._last)} of the last {len(self._last)} calls had no plan and were traced anew, "
                f"which takes seconds each: {reason}. Keep it as it was, give what changes as a tensor, or "
                "pad batches to a few lengths (pad_values=, pad_to_lengths=)"
            )
