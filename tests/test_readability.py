"""Pages are readable: short paragraphs, short sentences, and the field's words (docs/glossary.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import layers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(
        DOCS / f"{name}.md"
        for name in (
            "index",
            "start",
            "choose",
            "gallery",
            "compatibility",
            "troubleshooting",
            "limits",
            "comparisons",
        )
    ),
    *sorted((DOCS / "how-to").glob("*.md")),
    *(DOCS / f"{name}.md" for name in ("rules", "bounds", "offloading", "design", "decisions")),
]
"""Begin, how-tos and explanations: short sentences, the standard words. Paragraphs are short on all pages."""

MOST_SENTENCES = 5
"""Sentences of a paragraph or an item of a list."""

MOST_WORDS = 20.0
"""Words per sentence, the mean of a page."""
LONG_SENTENCES = {"bounds": 23.0, "offloading": 22.0}
"""The same for pages whose sentences have formulas and lists of names."""

ODD = (
    *("beside", "behind", "plain", "floor", "maker", "dear", "alike", "whoever", "told", "at hand"),
    *(
        "as ever",
        "in the place of",
        "made again",
        "run again",
        "so many",
        "(?<!there )is no",
        "(?<!there )are no",
        "goes on",
        "go on",
    ),
)
"""Words for which the glossary has the field's own."""
MEANT: dict[str, int] = {}
"""Number of odd words that a page has in their ordinary sense."""

CODE_WORDS = (
    "again",
    "told",
    "behind",
    "beside",
    "plain",
    "floor",
    "maker",
    "away",
    "dear",
    "alike",
    "ours",
    "whoever",
)
CODE_WORDS += ("strangers", "as ever", "at hand", "in the place of")
MEANT_IN_CODE = {
    "cli/printing/output.py": "rich's attribute `Text.plain`",
    "sizing/words.py": "math.floor",
    "exchange/nodes.py": "np.floor",
    "exchange/onnx_shapes.py": "ONNX's operator Floor, np.floor",
    "profiling/compare/verdict.py": "a field in files of older versions",
    "solvers/bounds/offload/link_windows.py": "np.floor",
    "solvers/bounds/residency/cuts.py": "np.floor",
    "solvers/offloading/pofo/table.py": "np.floor",
    "solvers/recomputation/hiremate/hiremate.py": "the setting `plain` of hiremate",
    "solvers/recomputation/hiremate/solve_levels.py": "the same setting",
    "solvers/recomputation/partitioner/operators.py": "PyTorch's operator floor",
}
"""Files of packages, messages included, that have an odd word, and why it is the right one there."""
MOST_IN_CODE = 20

FENCE = re.compile(r"^```.*?^```$|<!--.*?-->", re.S | re.M)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.M)
END = re.compile(r"[.!?](?:\*\*|\)|\")?(?=\s+[A-Z0-9\"(*]|\s*$)")
TITLE = re.compile(r"^\*\*[^*]+\.\*\*\s+")
"""The title of a paragraph, on its first line."""
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def paragraphs(page: Path) -> Iterator[str]:
    """Yield paragraphs and items of lists as words alone, without tables, headings, code and comments."""
    for block in re.split(r"\n\s*\n", FENCE.sub("\n\n", page.read_text())):
        if block.lstrip().startswith(("|", "#", ">")):
            continue
        for item in ITEM.split(block):
            text = CODE.sub("Code", LINK.sub(r"\1", TITLE.sub("", item)))
            if text.strip():
                yield " ".join(text.split())


def sentences(paragraph: str) -> list[str]:
    """Split at full stops that a capital, a digit or the end follows."""
    return [part for part in (one.strip() for one in END.split(paragraph)) if len(part.split()) > 1]


def long_paragraphs(page: Path) -> list[str]:
    return [text for text in paragraphs(page) if len(sentences(text)) > MOST_SENTENCES]


def odd_words(page: Path) -> list[str]:
    text = " ".join(CODE.sub(" ", LINK.sub(r"\1", FENCE.sub(" ", page.read_text()))).split())
    return [match[0] for word in ODD for match in re.finditer(rf"\b{word}\b", text, re.I)]


@pytest.mark.parametrize("page", [PAGES[0], *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_paragraphs_are_short(page: Path) -> None:
    assert long_paragraphs(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path) -> None:
    lengths = [len(sentence.split()) for text in paragraphs(page) for sentence in sentences(text)]
    assert sum(lengths) / len(lengths) <= LONG_SENTENCES.get(page.stem, MOST_WORDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_words_are_the_fields_own(page: Path) -> None:
    assert len(odd_words(page)) == MEANT.get(page.stem, 0), odd_words(page)


def test_messages_and_names_have_the_fields_words() -> None:
    found: dict[str, int] = {}
    for layer in layers():
        for path in (ROOT / layer).rglob("*.py"):
            text = path.read_text()
            if count := sum(len(re.findall(rf"\b{word}\b", text, re.I)) for word in CODE_WORDS):
                found[str(path.relative_to(ROOT))] = count
    assert found.keys() == MEANT_IN_CODE.keys()
    assert sum(found.values()) <= MOST_IN_CODE


def test_sentences_and_paragraphs_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A. B. C.\n\nOne fact. Two `a.b` facts, e.g. three! (Four facts.) Five facts? Six facts. "
        "And one.\n\n"
        "- An item. It has two.\n- Another one\n\n| a. b. | c. d. |\n\n```sh\nx. Y. Z.\n```\n"
        "It is no plain floor."
    )
    assert [len(sentences(text)) for text in paragraphs(page)] == [6, 2, 1, 1]
    assert len(long_paragraphs(page)) == 1
    assert sorted(odd_words(page)) == ["floor", "is no", "plain"]
