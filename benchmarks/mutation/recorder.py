"""A plugin of pytest that records which lines each test runs, and its seconds of processor time.

    python -m pytest -p mutation.recorder …    with RECORD_LINES=FILE: FILE.sqlite and FILE.json

Lines that other processes run are not seen, nor are those that Numba has compiled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from time import process_time

import pytest
from coverage import Coverage

ROOT = Path(__file__).parents[2]


class Recorder:
    """Records under a context of its own what each test runs. file: the records' path, without a suffix."""

    def __init__(self, file: Path) -> None:
        self._file, self._seconds, self._failed = file, dict[str, float](), set[str]()
        source = [str(ROOT / "memplan")]
        self._coverage = Coverage(f"{file}.sqlite", source=source, config_file=False, messages=False)
        self._coverage.erase()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run one test in its context."""
        self._coverage.switch_context(item.nodeid)
        begin = process_time()
        result = yield
        self._seconds[item.nodeid] = process_time() - begin
        self._coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Forget a test that fails as it is: it would kill every mutant."""
        if report.failed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the records. The seconds come last: a file of them says that the lines are whole."""
        self._coverage.stop()
        self._coverage.save()
        unfinished = Path(f"{self._file}.part")
        kept = {test: seconds for test, seconds in self._seconds.items() if test not in self._failed}
        unfinished.write_text(json.dumps(kept))
        unfinished.rename(f"{self._file}.json")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to record before anything of memplan is imported."""
    config.pluginmanager.register(Recorder(Path(os.environ["RECORD_LINES"])))
