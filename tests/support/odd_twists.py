"""What may be odd about a graph, put into its document one thing at a time; not every outcome is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Document = dict[str, Any]

SIZES = (0, 0, 1, 3, 1000, 2**20, 2**40)
TIMES = (0.0, 0.0, 5e-324, 1e-9, 0.1, 1.0, 1e6, 1e16)
PERSISTENT = ("parameter", "buffer", "optimizer_state")
NAMES = (
    " ",
    "\n",
    "é\n\n  ",
    "[red]x[/red]",
    "\x1b[31m",
    "%s{0}",
    "on",
    "1e3",
    "../x",
    "a" * 300,
    "\u202e",
    "🦆",
)


def _sizes(random: Random, document: Document) -> None:
    share = random.choice((0.2, 1.0))
    for row in document["tensors"]:
        if random.random() < share:
            row["bytes"] = random.choice(SIZES)


def _no_bytes(_random: Random, document: Document) -> None:
    for row in document["tensors"]:
        row["bytes"] = 0


def _times(random: Random, document: Document) -> None:
    share, times = random.choice((0.2, 1.0)), random.choice((TIMES, (0.0,), TIMES[:4]))
    for row in document["operations"]:
        if random.random() < share:
            row["time"] = random.choice(times)


def _launches(random: Random, document: Document) -> None:
    """Of operations, and of modes apart."""
    times = random.choice((TIMES, (0.0, 1.0), (10.0,)))
    for row in document["operations"]:
        for each in (row, *row.get("modes", {}).values()):
            if random.random() < 0.7:
                each["launch"] = random.choice(times)


def _workspaces(random: Random, document: Document) -> None:
    for row in document["operations"]:
        row["workspace"] = random.choice(SIZES)


def _change_in_place(random: Random, document: Document) -> None:
    """Of a tensor that is there by then, of any kind, by an operation of its own."""
    place = random.randint(0, len(document["operations"]))
    names = _names(document)
    if names:
        random.shuffle(names)
        row: Document = {
            "name": _fresh(document, "change"),
            "phase": random.choice(("forward", "backward", "update")),
            "time": random.choice((0, 1)),
            "reads": names[2 : random.choice((2, 3))],
            "writes": [],
            "mutates": names[: random.choice((1, 1, 2))],
            "recompute": random.random() < 0.5,
        }
        document["operations"].insert(place, row)


def _also_changes(random: Random, document: Document) -> None:
    row, names = _operation(random, document), _names(document)
    if row and names:
        changed = random.choice(names)
        if changed not in row["writes"]:
            row["mutates"] = [*dict.fromkeys([*row.get("mutates", []), changed])]
            row["recompute"] = False


def _also_reads(random: Random, document: Document) -> None:
    row, names = _operation(random, document), _names(document)
    if row and names:
        row["reads"] = [*dict.fromkeys([*row["reads"], random.choice(names)])]


def _also_writes(random: Random, document: Document) -> None:
    """A contribution to what others write."""
    row, names = _operation(random, document), _names(document)
    if row and names:
        row["writes"] = [*dict.fromkeys([*row["writes"], random.choice(names)])]


def _reader_at_the_end(random: Random, document: Document) -> None:
    names = _names(document)
    row = {"name": _fresh(document, "last"), "phase": "update", "time": 1, "reads": names[:1], "writes": []}
    if names:
        row["reads"] = [random.choice(names)]
    document["operations"].append(row)


def _left_out(random: Random, document: Document) -> None:
    for _operation_left_out in range(random.choice((1, 1, 3))):
        if document["operations"]:
            document["operations"].pop(random.randrange(len(document["operations"])))


def _mode(random: Random, document: Document) -> None:
    row = _operation(random, document)
    if row:
        inputs = [x for x in row["reads"] if x not in row.get("mutates", [])]
        ways: tuple[Document, ...] = (
            {"on": "host", "time": random.choice((0, 2))},
            {"reads_host": inputs[:1], "time": 2},
            {"writes_host": row["writes"][-1:], "time": random.choice((1, 2))},
            {"writes": row["writes"][:1], "time": 0.5},
            {"workspace": 7},
            {"time": random.choice(TIMES)},
        )
        row.setdefault("modes", {})[f"m{random.randrange(3)}"] = random.choice(ways)


def _flags(random: Random, document: Document) -> None:
    flag, value = random.choice((("recompute", False), ("random", True))), random.random()
    for row in document["operations"]:
        if random.random() < value:
            row[flag[0]] = flag[1]


def _kinds(random: Random, document: Document) -> None:
    for row in document["tensors"]:
        if random.random() < 0.2:
            made = row["kind"] in ("activation", "gradient", "parameter_gradient")
            row["kind"] = random.choice(
                ("activation", "gradient", "parameter_gradient") if made else ("input", *PERSISTENT)
            )


def _phases(random: Random, document: Document) -> None:
    for row in document["operations"]:
        if random.random() < 0.3 and row["phase"] != "loss":
            row["phase"] = random.choice(("forward", "backward", "update"))


def _results(random: Random, document: Document) -> None:
    names = _names(document)
    document["results"] = random.sample(names, min(len(names), random.choice((0, 1, 2, 50))))


def _bystanders(random: Random, document: Document) -> None:
    """Tensors that nothing touches."""
    for kind in random.sample(("input", *PERSISTENT, "activation"), 2):
        document["tensors"].append(
            {"name": _fresh(document, "idle"), "bytes": random.choice(SIZES), "kind": kind}
        )


def _odd_names(random: Random, document: Document) -> None:
    """One tensor or operation is called something odd, wherever it is named."""
    new = random.choice(NAMES)
    if random.random() < 0.5:
        document["name"] = new
        return
    names = _names(document)
    if not names or new in names:
        return
    old = random.choice(names)

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if isinstance(value, dict):
            return {key: renamed(item) for key, item in value.items()}
        return new if value == old else value

    document.update(renamed({part: document[part] for part in ("tensors", "operations", "results")}))


def _names(document: Document) -> list[str]:
    return [row["name"] for row in document["tensors"]]


def _operation(random: Random, document: Document) -> Document | None:
    return random.choice(document["operations"]) if document["operations"] else None


def _fresh(document: Document, name: str) -> str:
    taken = {row["name"] for part in ("tensors", "operations") for row in document[part]}
    return next(_unused(name, taken))


def _unused(name: str, taken: set[str]) -> Iterator[str]:
    for number in range(len(taken) + 1):
        if f"{name}{number}" not in taken:
            yield f"{name}{number}"


TWISTS: tuple[Callable[[Random, Document], None], ...] = (
    _sizes,
    _no_bytes,
    _times,
    _launches,
    _workspaces,
    _change_in_place,
    _change_in_place,
    _also_changes,
    _also_changes,
    _also_reads,
    _also_reads,
    _also_writes,
    _reader_at_the_end,
    _left_out,
    _mode,
    _mode,
    _flags,
    _kinds,
    _phases,
    _results,
    _bystanders,
    _odd_names,
)
