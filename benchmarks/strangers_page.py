"""The page of strangers' models (benchmarks/results/strangers.md), from the rows of strangers.py."""

from collections import Counter, defaultdict
from datetime import date

from strangers import loops_of, strangers
from strangers_training import CRASH, LATER, NO_MODEL, REFUSED, SLOW, WORKS, WRONG

HEAD = """# Models that nobody tuned memplan for

`benchmarks/strangers.py` builds small models as they come from their packages and trains each, in a process
of its own, on ten different batches of equal shapes: other values and labels in each, texts of other lengths,
other edges of a graph. It does so twice by `optimize`, with AdamW in the loop and with AdamW in the plan, and
by eager PyTorch. Compared, bit by bit: losses, gradients, weights, optimizer states, buffers, random numbers.

| outcome | meaning |
|---|---|
| works | Both loops train all ten batches with equal results, in at most the predicted peak. |
| refused | `optimize` raises one line. |
| refused later | The first batch is planned and another is refused. |
| wrong | Something differs from eager PyTorch's, or the peak is above the predicted one. |
| crash | Another exception or a signal. |
| out of time | More seconds than a model has here; as many as `--timeout` says. |

Neither AdamW's counts of steps (4 bytes per weight) nor, on the CPU, the random generator's state that
PyTorch hands out as a tensor where a draw is repeated (5,056 bytes) are in the predicted peak; they are
allowed for.
The worse of its two loops is a model's outcome. The budget is 80 % of the baseline's peak; if that has no
schedule it is 100 %, and then any memory at all.
"""
WORST = (CRASH, WRONG, SLOW, REFUSED, LATER, WORKS)


def worst(row):
    """The outcome of the worse loop, and its facts."""
    loops = loops_of(row).values()
    return min(loops, key=lambda found: WORST.index(found["outcome"]))


def counted(rows):
    """A row of the table: how many have each outcome."""
    counts = Counter(worst(row)["outcome"] for row in rows)
    share = f"{counts[WORKS] / len(rows):.1%}" if rows else ""
    return " | ".join([str(len(rows)), *(str(counts[each]) for each in reversed(WORST)), share])


def table(rows):
    yield f"| models | run | {' | '.join(reversed(WORST))} | share that works |"
    yield "|---|" + "---|" * (len(WORST) + 2)
    for family in strangers():
        own = [row for row in rows if row["family"] == family]
        yield f"| {family} | {counted(own)} |"
    drawn = [row for row in rows if row["family"].endswith("drawn")]
    yield f"| **all drawn by seed** | {counted(drawn)} |"
    yield f"| **all others** | {counted([row for row in rows if row not in drawn])} |"
    yield f"| **all** | {counted(rows)} |"


def facts(rows):
    """What the table does not show: states of the code, plans, and plans that cost more than eager does."""
    states = Counter(row["state"] for row in rows)
    yield f"Rows by state of the code: {', '.join(f'{number} at {each}' for each, number in states.items())}."
    working = [row for row in rows if worst(row)["outcome"] == WORKS]
    plans = [row for row in working if worst(row)["max_plans"] > 1]
    if plans:
        names = ", ".join(f"{row['model']} ({worst(row)['max_plans']})" for row in plans)
        yield f"Of those that work, {len(plans)} needed more plans than one: {names}."
    once = [row for row in rows if worst(row)["outcome"] in (WORKS, LATER)]
    yield f"On the first batch alone {len(once)} of {len(rows)} ({len(once) / len(rows):.1%}) work."
    once = [row for row in rows if "outside" not in row and "ended" not in row]
    if once:
        yield f"{len(once)} models were trained by one loop alone: AdamW in the plan, 100 % of the memory."
    both = [row for row in working if "outside" in row]
    higher = [row for row in both if row["outside"]["peak"] > row["eager"]["eager_peak"]]
    yield f"{len(both)} work in both loops. For {len(higher)} of these the plan has the higher peak, since"
    yield "the baseline of which the budget is a share is above it."


def lines_of(rows, outcome):
    yield f"## {outcome.capitalize()}"
    yield ""
    yield "| model | loop | line |"
    yield "|---|---|---|"
    for row in rows:
        if worst(row)["outcome"] == outcome:
            for loop, found in loops_of(row).items():
                if found["outcome"] == outcome:
                    at = f"batch {found['batch'] + 1}: " if outcome == LATER else ""
                    why = " ".join(found["why"].split()).replace("|", "¦")
                    yield f"| {row['family']}: {row['model']} | {loop} | {at}{why} |"
                    break
    yield ""


def page(rows, machine):
    """Markdown. rows: the last of a model counts."""
    last = {(row["family"], row["model"]): row for row in rows}
    rows = [row for row in last.values() if NO_MODEL not in row]
    listed = sum(map(len, strangers().values()))
    date_line = f"{machine}, {date.today()}: {len(rows)} of {listed} listed models were run."
    lines = [HEAD, date_line, ""]
    lines += [*table(rows), "", *facts(rows), ""]
    for outcome in WORST[:-1]:
        if any(worst(row)["outcome"] == outcome for row in rows):
            lines += lines_of(rows, outcome)
    lines += ["## Works", "", "In brackets the budget, if it is not 80 %.", ""]
    working = defaultdict(list)
    for row in rows:
        found = worst(row)
        if found["outcome"] == WORKS:
            budget = {"80%": "", "100%": " (100 %)"}.get(found["budget"], " (any memory)")
            working[row["family"]].append(f"{row['model']}{budget}")
    lines += [f"- **{family}**: {', '.join(models)}" for family, models in working.items()]
    return "\n".join(lines) + "\n"
