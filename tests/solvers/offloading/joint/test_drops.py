"""Updates that the joint search may move: those after which nothing reads or changes what they touch."""

from __future__ import annotations

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Kind, Phase
from memplan.solvers.offloading.joint.drops import _movable


def test_an_update_moves_if_nothing_after_it_depends_on_it() -> None:
    draft = Draft("updates")
    x, y = draft.tensor("x", 1, Kind.INPUT), draft.tensor("y", 1)
    weights = [draft.tensor(f"w{i}", 1, Kind.PARAMETER) for i in range(4)]
    gradients = [draft.tensor(f"d{i}", 1, Kind.PARAMETER_GRADIENT) for i in range(4)]
    average = draft.tensor("average", 1, Kind.OPTIMIZER_STATE)
    draft.operation("F", time=1, reads=[x, *weights], writes=[y])
    draft.operation("B", time=1, reads=[y], writes=gradients, phase=Phase.BACKWARD)
    for i, (w, d) in enumerate(zip(weights, gradients, strict=True)):
        draft.operation(f"U{i}", time=1, reads=[d], mutates=[w], phase=Phase.UPDATE)
    draft.operation("reads w0", time=1, reads=[weights[0]], mutates=[average], phase=Phase.UPDATE)
    draft.operation("changes w1", time=1, mutates=[weights[1]], phase=Phase.UPDATE)
    draft.operation("changes d2", time=1, mutates=[gradients[2]], phase=Phase.UPDATE)
    graph = draft.graph()
    movable = {graph.operations.name[operation] for operation in _movable(graph)}
    assert movable == {"U3", "reads w0", "changes w1", "changes d2"}
