"""The draw of mutants, and which tests run on one: benchmarks/mutants.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from mutation.draw import drawn, lines_of
from mutation.mutations import Sites, function_at, mutated
from mutation.near import FILES, near
from mutation.reach import Reach, within

SOURCE = """
def least(rows: list[int] = [3], *, most: int = 2) -> int:
    if not rows and most < 4:
        return -1
    return min(rows) + most
"""


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (
            3,
            {
                "if not (not rows and most < 4):",
                "if not rows or most < 4:",
                "if rows and most < 4:",
                "if not rows and most <= 4:",
                "if not rows and most < 5:",
            },
        ),
        (4, {"return 1", "return -2"}),
        (5, {"return min(rows) - most", "return max(rows) + most"}),
    ],
)
def test_each_site_of_a_line_gives_one_mutant(line: int, after: set[str]) -> None:
    made = [mutated(SOURCE, line, number) for number in range(Sites(SOURCE).counts[line])]
    assert {source.splitlines()[line - 2].strip() for source in made} == after


def test_annotations_have_no_mutants() -> None:
    assert Sites(SOURCE).counts[2] == 2  # the two defaults
    assert function_at(SOURCE, 4) == "least"


def test_a_larger_draw_begins_with_a_smaller_one(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "least.py").write_text(SOURCE)
    lines = lines_of(tmp_path, "planner")
    assert [each[0].line for each in lines] == [2, 3, 4, 5]
    few, many = (drawn(tmp_path, ["planner"], count, seed=1) for count in (2, 9))
    assert few == many[:2]
    assert sorted(mutant.line for mutant in many) == [2, 3, 4, 5]


def test_the_fastest_tests_run_and_one_in_any_case() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0}
    assert within("abc", seconds, 3.5) == ["a", "b"]
    assert within("c", seconds, 1.0) == ["c"]


def test_mutants_wait_for_the_records_of_all_tests(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"run `mutants\.py record` first"):
        Reach(tmp_path)


def test_a_test_that_fails_without_a_mutant_kills_none() -> None:
    """It has no seconds: the recorder forgets it."""
    reach = object.__new__(Reach)
    reach.seconds, reach._files = {"slow": 2.0, "fast": 1.0}, {"a.py": {3: {"slow", "fast", "fails"}}}
    assert reach.tests("a.py", 3) == ["fast", "slow"]


def test_the_nearest_test_files_come_first(tmp_path: Path) -> None:
    """Its own by their names, whatever they import; then those that import it, over few files first."""
    files = {
        "memplan/planner/least.py": SOURCE,
        "memplan/planner/most.py": "from .least import least",
        "memplan/planner/other.py": "",
        "tests/planner/test_least_odd.py": "from memplan.planner.most import least",
        "tests/planner/test_leastwise.py": "from memplan.planner.most import least",
        "tests/planner/test_other.py": "from memplan.planner.other import any",
        "tests/cli/test_show.py": "from memplan.planner.least import least",
        "tests/cli/test_solve.py": "from memplan.planner.most import least",
        "tests/support/lists.py": "from memplan.planner.least import least",
        "tests/cli/test_far.py": "from lists import least\nfrom memplan.planner.other import any",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    first, more = near("planner/least.py", tmp_path)
    assert first == [
        "tests/planner/test_least_odd.py",
        "tests/cli/test_show.py",
        "tests/planner/test_leastwise.py",
    ]
    assert more == ["tests/cli/test_solve.py", "tests/cli/test_far.py"]
    assert len(first) == FILES[0]
    assert near("planner/unknown.py", tmp_path) == []
