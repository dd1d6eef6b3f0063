"""What commands print with --json in these tests satisfies the schema, whatever else a test looks at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from memplan.cli.printing.output import Answer

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "plan-output.schema.json"


@cache
def validator() -> Any:
    """Return what validates an object, None without the package, which is of the extra `dev`."""
    try:
        import jsonschema
    except ImportError:
        return None
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


@pytest.fixture(autouse=True)
def printed_objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Validate the objects that a test's commands print."""
    found = list[dict[str, Any]]()
    before = Answer.print

    def noted(self: Answer, document: Mapping[str, Any]) -> None:
        found.append({"command": self.command, **json.loads(json.dumps(document))})
        before(self, document)

    monkeypatch.setattr(Answer, "print", noted)
    yield found
    for one in found if validator() else ():
        faults = [*validator().iter_errors(one)]
        nearest = min(_by_part(faults[0].context), key=len) if faults else []
        assert not faults, (one["command"], [f"{each.json_path}: {each.message}" for each in nearest])


def _by_part(faults: list[Any]) -> list[list[Any]]:
    """Return the faults of each object that commands print."""
    found: dict[int, list[Any]] = {}
    for fault in faults:
        found.setdefault(fault.schema_path[0], []).append(fault)
    return [*found.values()]
