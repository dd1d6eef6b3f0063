"""The solvers by name: what each accepts, where it comes from, how it is run and judged.

A solver is a module with two names: `Settings`, a frozen dataclass whose fields (int, float, bool or str,
with defaults) are its options, and `solve(problem, options) -> Answer`. Modules are imported when first
used. Other packages add solvers through the entry-point group `memplan.solvers`: an entry point's name is
the solver's, its value names such a module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from math import isfinite
from time import perf_counter
from types import NoneType
from typing import Any, get_args, get_type_hints

from ..graphs.errors import InputError, MissingPackageError
from ..planner.errors import InvalidScheduleError
from ..planner.simulate import Figures, simulate
from .lower_bounds import PROVEN, lower_bounds
from .problem import Answer, Bound, Options, Problem, Solution, Status

GROUP = "memplan.solvers"

BOUND_SECONDS = 10.0
"""The most that is spent on lower bounds unless told otherwise."""


@dataclass(frozen=True)
class Entry:
    """module: where `Settings` and `solve` are; relative to this package, or the whole name of another's."""

    name: str
    module: str
    accepts: str
    source: str
    summary: str


_OURS = (
    Entry(
        "auto",
        ".auto",
        "any graph",
        "ours",
        "the default: search and others side by side on the cores at hand; the fastest answer",
    ),
    Entry(
        "store-all", ".store_all", "any graph", "eager PyTorch", "the plain schedule: nothing is recomputed"
    ),
    Entry(
        "chen-sqrt",
        ".chen_sqrt",
        "chains of blocks",
        "Chen et al. 2016, arXiv:1604.06174",
        "periodic checkpoints: segments of equal length, each run again",
    ),
    Entry(
        "revolve",
        ".revolve",
        "chains of blocks",
        "Griewank & Walther 2000, doi:10.1145/347837.347846",
        "binomial checkpointing: least forward runs where all blocks are alike",
    ),
    Entry(
        "rotor",
        ".rotor",
        "chains of blocks",
        "Beaumont et al. 2019, Inria RR-9302",
        "the fastest persistent schedule of a chain, by dynamic programming",
    ),
    Entry(
        "rk-rotor",
        ".rk_rotor",
        "chains of blocks",
        "Zhao et al. 2023, arXiv:2307.01236",
        "rotor with options for each block that keep what is dear to make again",
    ),
    Entry(
        "checkmate",
        ".checkmate",
        "any graph; a MILP solver",
        "Jain et al. 2020, arXiv:1910.02653",
        "integer program: the fastest schedule that keeps the file's order",
    ),
    Entry(
        "rk-checkmate",
        ".rk_checkmate",
        "any graph; a MILP solver",
        "Zhao et al. 2023, arXiv:2307.01236",
        "checkmate with a limit on what is kept at the loss",
    ),
    Entry(
        "rockmate",
        ".rockmate",
        "chains of blocks; a MILP solver",
        "Zhao et al. 2023, arXiv:2307.01236",
        "rk-rotor with options for each block from rk-checkmate",
    ),
    Entry(
        "search",
        ".search",
        "any graph",
        "ours; annealing after Imanishi et al. 2023 (FastSA)",
        "the fastest sequence found in any order, memory exact at every step",
    ),
    Entry(
        "moccasin",
        ".moccasin",
        "any graph; OR-tools",
        "Bartan et al. 2023, arXiv:2304.14463",
        "constraint program: the fastest schedule in the file's order with few runs of each operation",
    ),
    Entry(
        "tw-remat",
        ".tw_remat",
        "any graph",
        "Kumar et al. 2019, NeurIPS",
        "separators of the graph are kept, what lies between them is made again; then the budget is filled",
    ),
    Entry(
        "h-ilp",
        ".h_ilp",
        "training graphs; a MILP solver",
        "Zhao 2024, thesis, chapter 3",
        "clusters of clusters, combined at every level by an integer program",
    ),
    Entry(
        "hiremate",
        ".hiremate",
        "training graphs; a MILP solver",
        "Zhao 2024, thesis, chapter 3",
        "h-ilp's framework: any partitioner, any solver at any level",
    ),
)


class SolverFaultError(Exception):
    """A solver's answer breaks a rule or the budget: the solver's fault, not the input's."""


def entries() -> list[Entry]:
    """Ours first, then those of other packages by name. Imports no solver."""
    ours = {entry.name for entry in _OURS}
    theirs = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [*_OURS, *(_foreign(point) for point in theirs if point.name not in ours)]


def entry(name: str) -> Entry:
    known = {entry.name: entry for entry in entries()}
    if name not in known:
        close = get_close_matches(name, known, 3, 0.4) or sorted(known)
        raise InputError(f"unknown solver {name!r}: did you mean {' or '.join(close)}?")
    return known[name]


def solve(
    name: str,
    problem: Problem,
    time_limit: float | None = None,
    settings: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda _line: None,
    bound_seconds: float = BOUND_SECONDS,
) -> Solution:
    """Run a solver and let the simulator judge its answer.

    time_limit: seconds. settings: the solver's options as text. report: takes lines of progress.
    bound_seconds: the most that is then spent on lower bounds; 0 for none but the time of all operations.
    Raises InputError (name, settings), InfeasibleError, NotAcceptedError, SolverFaultError.
    """
    module = _module(entry(name))
    chosen = parse_settings(name, module.Settings, settings or {})
    start = perf_counter()
    answer: Answer = module.solve(problem, Options(time_limit, chosen, report))
    seconds = perf_counter() - start
    figures = _judge(name, problem, answer)
    bounds = _bounds(name, problem, answer, figures, 0.0 if answer.interrupted else bound_seconds)
    lower_bound = bounds[0].seconds
    proven = figures.time <= lower_bound * (1.0 + PROVEN)
    return Solution(
        name,
        answer.schedule,
        figures,
        lower_bound,
        Status.OPTIMAL if proven else answer.status,
        seconds,
        asdict(chosen),
        answer.interrupted,
        bounds,
    )


def _bounds(
    name: str, problem: Problem, answer: Answer, figures: Figures, seconds: float
) -> tuple[Bound, ...]:
    """The largest that holds for every schedule, then those that hold for fewer and are larger, growing.

    Raises SolverFaultError where the schedule is faster than the first.
    """
    claimed = [Bound(answer.lower_bound, name, "any")] if answer.lower_bound is not None else []
    computed = lower_bounds(problem, answer.schedule, figures.time, seconds)
    found = sorted([*answer.bounds, *claimed, *computed], key=lambda bound: bound.seconds)
    best = max((bound for bound in found if bound.general), key=lambda bound: bound.seconds)
    if best.seconds > figures.time * (1.0 + PROVEN):
        raise SolverFaultError(
            f"the lower bound {best.seconds:.9g} s of {best.name} is above the {figures.time:.9g} s "
            "of a schedule that holds"
        )
    above = best.seconds * (1.0 + PROVEN)
    larger = {(bound.order, bound.transfers): bound for bound in found if bound.seconds > above}
    return replace(best, seconds=min(best.seconds, figures.time)), *larger.values()


def settings_of(name: str) -> dict[str, Any]:
    """A solver's settings with their defaults. Imports the solver."""
    return asdict(_module(entry(name)).Settings())


def chosen_settings(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """All settings of a solver, these among them as given. Raises InputError. Imports the solver."""
    return asdict(parse_settings(name, _module(entry(name)).Settings, settings))


def parse_settings(solver: str, kind: type[Any], settings: Mapping[str, str]) -> Any:
    """The solver's `Settings` from `key=value` texts."""
    types = get_type_hints(kind)
    keys = [field.name for field in fields(kind)]
    values: dict[str, Any] = {}
    for key, text in settings.items():
        if key not in keys:
            has = f"its settings are {', '.join(keys)}" if keys else "it has none"
            raise InputError(f"{solver} has no setting {key!r}: {has}")
        wanted = _bare(types[key])
        try:
            values[key] = _READERS[wanted](text.strip())
        except (ValueError, KeyError):
            raise InputError(f"{solver}: the setting {key} must be {_WORDS[wanted]}, not {text!r}") from None
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{solver}: {error}") from None


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError
    return number


_READERS: dict[type, Callable[[str], Any]] = {
    int: int,
    float: _number,
    bool: lambda text: _BOOLS[text.lower()],
    str: str,
}
_WORDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _bare(kind: Any) -> type:
    """`T` of `T` or `T | None`."""
    return next((part for part in get_args(kind) if part is not NoneType), kind)


def _judge(name: str, problem: Problem, answer: Answer) -> Figures:
    try:
        replay = simulate(problem.graph, answer.schedule, budget=problem.budget, machine=problem.machine)
    except InvalidScheduleError as error:
        raise SolverFaultError(f"the schedule that {name} gave is refused: {error}") from error
    return replay.figures


def _foreign(point: EntryPoint) -> Entry:
    """Its texts are read when the module is: a solver is only imported when it is used."""
    package = point.dist.name if point.dist else point.module
    return Entry(point.name, point.value, "see its documentation", package, f"from the package {package}")


def _module(entry: Entry) -> Any:
    if entry.module.startswith("."):
        return import_module(entry.module, __package__)
    try:
        return EntryPoint(entry.name, entry.module, GROUP).load()
    except (ImportError, AttributeError) as error:
        raise MissingPackageError(f"the solver {entry.name} can't be loaded: {error}") from error
