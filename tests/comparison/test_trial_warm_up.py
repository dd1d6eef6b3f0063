"""What a row of a comparison does before its clock runs."""

import pytest
from memplan.comparison import trial
from memplan.graphs.machine import Link, Links
from memplan.solvers.registry import run as registry

LINKS = Links(d2h=Link(1e9), h2d=Link(1e9))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("solver", ["joint", "offload-greedy", "lohan", "search"])
@pytest.mark.parametrize("links", [Links(), LINKS], ids=["alone", "with links"])
def test_a_solver_has_run_before_the_clock_does(
    solver: str, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first row on a machine has the compiling in its seconds."""
    ran: list[str] = []
    solve = registry.solve

    def noted(name, *arguments, **options):
        solution = solve(name, *arguments, **options)
        ran.append(name)
        return solution

    monkeypatch.setattr(registry, "solve", noted)
    trial.warm_up(solver, {}, links)
    needs_links = solver != "search"
    assert ran == ([solver] if links is LINKS or not needs_links else [])
