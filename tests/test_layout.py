"""Test files stand where their source stands, and begin with its name."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARE = 0.8
"""Of test files; the others test several sources together, or what is not code."""


def mirrored(test: Path) -> bool:
    """Whether a file, by its path in tests/, begins with the name of a source in the same folder."""
    folder, words = test.parent, test.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    base = ROOT if folder.parts[:1] == ("benchmarks",) else ROOT / "memplan"
    return any((base / folder / f"{name}.py").exists() or (base / folder / name).is_dir() for name in names)


def test_most_stand_where_their_source_stands() -> None:
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    others = sorted(str(test) for test in tests if not mirrored(test))
    assert len(others) <= (1 - SHARE) * len(tests), others


def test_what_tests_share_is_in_one_folder() -> None:
    """Beside it, training scripts of other packages are data."""
    folders = {
        path.relative_to(ROOT / "tests").parts[0]
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith(("test_", "conftest"))
    }
    assert folders == {"support", "training_scripts"}


def test_a_name_that_no_source_has_is_no_mirror() -> None:
    assert mirrored(Path("graphs/test_units.py"))
    assert mirrored(Path("training/step/test_loss.py"))
    assert not mirrored(Path("graphs/test_loss.py"))
    assert not mirrored(Path("training/test_custody.py"))
