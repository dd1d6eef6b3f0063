"""The rows as one table in Markdown; below it, by what it is, what has no figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

HEADS = (
    "model", "budget", "way", "fits", "MiB planned", "measured", "arena planned", "reserved", "ms planned",
    "measured", "samples/s", "note",
)  # fmt: skip


def table(head: str, rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [head, "", *(f"| {' | '.join(cells)} |" for cells in (HEADS, ["---"] * len(HEADS)))]
    without = defaultdict[str, list[str]](list)
    for row in rows:
        if row.get("peak") is None:
            without[row.get("note", "")].append(f"{row['model']} {row['share']:.0%} {row['way']}")
        else:
            lines.append(f"| {' | '.join(_cells(row))} |")
    reasons = [f"- {note}: {', '.join(names)}." for note, names in without.items()]
    return "\n".join([*lines, "", *(["Without figures:", "", *reasons, ""] if reasons else [])])


def _cells(row: Mapping[str, Any]) -> list[str]:
    def number(name: str, scale: float, digits: int) -> str:
        return "" if row.get(name) is None else f"{row[name] * scale:,.{digits}f}"

    fits = {True: "yes", False: "no", None: "–"}[row.get("fits")]
    sizes = ("planned_peak", "peak", "planned_arena", "reserved")
    return [
        row["model"],
        f"{row['share']:.0%}",
        row["way"],
        fits,
        *(number(name, 2**-20, 2) for name in sizes),
        *(number(name, 1e3, 1) for name in ("planned_time", "time")),
        number("samples", 1, 1),
        row.get("note", "").replace("|", "/"),
    ]
