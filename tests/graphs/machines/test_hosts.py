"""Hosts: what they are written as, and the speed of updates on their processors."""

from __future__ import annotations

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.machines.hosts import DESKTOP, Host, parse_host


def test_what_is_not_written_is_assumed() -> None:
    assert parse_host("64GB", DESKTOP) == Host(64 * 10**9, DESKTOP.cores, DESKTOP.bandwidth)
    assert parse_host("64GB, 16 cores", DESKTOP) == Host(64 * 10**9, 16, DESKTOP.bandwidth)
    assert parse_host("1000,80GB/s,1core", DESKTOP) == Host(1000, 1, 80e9)
    assert str(Host(None, 4, 41.6e9)) == "4 cores with 42 GB/s"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("64", "host '64': without a unit it is bytes: write 64GB"),
        ("999,16cores", "write 999GB"),
        ("64GB,16", "'16' is neither cores nor a bandwidth"),
        ("64GB,16threads", "'16threads' is neither cores nor a bandwidth"),
        ("64GB,80/s", "80 without a unit is 80 bytes a second"),
        ("64GB,0cores", "is no host: write its memory"),
        ("0GB", "is no host: write its memory"),
    ],
)
def test_what_is_no_host_is_one_line(text: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        parse_host(text, DESKTOP)


@pytest.mark.parametrize(
    ("cores", "bandwidth", "one_by_one", "fused"),
    [
        (4, 1e12, 1.1e9, 7.04e9),  # few cores: each adds its own
        (64, 140e9, 2.8e9, 10e9),  # many: the memory is the limit, half of it in seven passes
        (16, 1e12, 2.8e9, 28.16e9),
    ],
)
def test_updates_are_bounded_by_cores_and_memory(
    cores: int, bandwidth: float, one_by_one: float, fused: float
) -> None:
    found = Host(None, cores, bandwidth).updates(5e9)
    assert (found.device, found.device_fused) == (5e9, None)
    assert (found.host, found.host_fused) == (pytest.approx(one_by_one), pytest.approx(fused))
