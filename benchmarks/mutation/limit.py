"""A plugin of pytest that ends a run after a number of seconds of processor time.

    MOST_SECONDS=20 python -m pytest -p mutation.limit …

Seconds of the processor, not by the clock: on a busy machine as many tests run as on a quiet one.
"""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the run after this test if its time is over."""
    used = os.times()
    if sum(used[:4]) > float(os.environ["MOST_SECONDS"]):  # with processes that have ended
        item.session.shouldstop = "time is over"
