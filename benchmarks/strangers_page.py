"""The page of what strangers' models came to (docs/strangers.md), from the rows of strangers.py."""

from collections import Counter, defaultdict
from datetime import date

from strangers import FAILS, NO_MODEL, REFUSED, WORKS, strangers

HEAD = """# Models that nobody tuned memplan for

`benchmarks/strangers.py` builds small models as they come from their packages and takes each through the
whole path in a process of its own: three iterations by a schedule (60 % of the plain peak, or half-way to it
from the least that any schedule needs) beside three of plain PyTorch. *Works*: loss, gradients and buffers
are bitwise equal, and the measured peak is the predicted to the byte; a mixture of experts, whose products
take more or less memory by where tokens go, is planned for the worst and may take less. *Refused*: `optimize`
raises one line. *Fails*: anything else. A listed model that was not run, or that plain PyTorch can't run, has
no row.
"""


def facts(rows):
    """By which state of the code each row was made, which schedules keep all, which peaks are below."""
    states = Counter(row.get("state", "an earlier state") for row in rows)
    working = [row for row in rows if row["outcome"] == WORKS]
    found = (f"{number} at {state}" for state, number in states.most_common())
    yield f"Run by state of the code (commit): {', '.join(found)}."
    whole = sum(row["share"] >= 1 for row in working)
    yield f"For {whole} of those that work no schedule below the plain peak was found in the seconds that the"
    yield "solver had: they ran as PyTorch does."
    for row in working:
        if row["off"] < 0:
            yield f"{row['model']} took {-row['off']:,} bytes less than the plan for the worst routing."


def page(rows, machine):
    """Markdown. rows: the last of a model counts."""
    last = {(row["family"], row["model"]): row for row in rows}
    rows = [row for row in last.values() if row["outcome"] != NO_MODEL]
    listed = sum(map(len, strangers().values()))
    counts = Counter(row["outcome"] for row in rows)
    lines = [
        HEAD,
        f"{machine}, {date.today()}: of {listed} listed models {len(rows)} were run; {counts[WORKS]} work "
        f"({counts[WORKS] / len(rows):.1%}), {counts[REFUSED]} are refused, {counts[FAILS]} fail.",
        "",
        *facts(rows),
        "",
        "| package | run | work | refused | fail |",
        "|---|---|---|---|---|",
    ]
    for family in strangers():
        own = [row for row in rows if row["family"] == family]
        each = Counter(row["outcome"] for row in own)
        lines.append(f"| {family} | {len(own)} | {each[WORKS]} | {each[REFUSED]} | {each[FAILS]} |")
    for outcome, title in ((REFUSED, "Refused"), (FAILS, "Failed")):
        if counts[outcome]:
            lines += ["", f"## {title}", "", "| model | line |", "|---|---|"]
        lines += [
            f"| {row['family']}: {row['model']} | {row['why'].replace('|', '¦')} |"
            for row in rows
            if row["outcome"] == outcome
        ]
    lines += ["", "## Work", "", "Budget as a share of the plain peak, in brackets.", ""]
    working = defaultdict(list)
    for row in rows:
        if row["outcome"] == WORKS:
            working[row["family"]].append(f"{row['model']} ({row['share']:.0%})")
    lines += [f"- **{family}**: {', '.join(models)}" for family, models in working.items()]
    return "\n".join(lines) + "\n"
