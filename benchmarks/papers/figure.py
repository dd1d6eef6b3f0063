"""A figure or table of a paper: what is published, and how ours is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Values = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Case:
    """A row. given: what is run. published: the paper's own numbers, by the name of the quantity of ours."""

    given: Values
    published: Values = field(default_factory=dict[str, str | int | float])


@dataclass(frozen=True)
class Plot:
    """Curves of y over x, both names of columns; where x is text, points alone. A curve for each of the
    values of `by`. axis: what all of y are, where they are several, with their unit. log: the axis of x."""

    x: str
    y: Sequence[str]
    by: Sequence[str] = ()
    axis: str = ""
    log: bool = False


@dataclass(frozen=True)
class Figure:
    """place: paper and number. published: what the text says of it, "plot only" where no number is printed.
    differences: why ours is another. measure: of a case's `given` and the seconds that one solve may take;
    raises InfeasibleError where there is no answer. small: a case that tests run."""

    name: str
    title: str
    place: str
    published: str
    differences: str
    cases: Sequence[Case]
    measure: Callable[[Values, float], Values]
    small: Values
    seconds: float = 60.0
    plot: Plot | None = None


@dataclass(frozen=True)
class Missing:
    """A figure that is not here, and why. simulable: a simulation could give it, memplan's does not yet."""

    place: str
    reason: str
    simulable: bool = False
