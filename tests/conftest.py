"""Shared by all tests: where the public corpora are, and a hypothesis profile that repeats itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    database=None,
)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of public instances beside the clone; the test skips where it is missing."""
    folder = Path(__file__).parents[2] / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip("the public corpora are not beside this clone")
    return folder
