"""Updates that the joint search may move: those on which updates alone depend, that may move too."""

from __future__ import annotations

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Kind, Phase
from memplan.solvers.offloading.joint.drops import Drops, _movable


def test_an_update_moves_if_updates_alone_depend_on_it() -> None:
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
    # U2 reads what a later one changes.
    assert movable == {"U0", "U1", "U3", "reads w0", "changes w1", "changes d2"}


def test_updates_by_row_blocks_hold_up_no_recomputation() -> None:
    """Each of them changes the weight: they move together, in order, and what reads it can run twice."""
    draft = Draft("row blocks")
    x, y, w = draft.tensor("x", 1, Kind.INPUT), draft.tensor("y", 9), draft.tensor("w", 4, Kind.PARAMETER)
    d = draft.tensor("d", 4, Kind.PARAMETER_GRADIENT)
    states = [draft.tensor(f"s{i}", 2, Kind.OPTIMIZER_STATE) for i in range(2)]
    draft.operation("F", time=1, reads=[x, w], writes=[y])
    draft.operation("B", time=1, reads=[y, w], writes=[d], phase=Phase.BACKWARD)
    for i, state in enumerate(states):
        draft.operation(f"U{i}", time=1, reads=[d], mutates=[w, state], phase=Phase.UPDATE)
    drops = Drops(draft.graph())
    assert [drops.graph.tensors.name[saved] for saved in drops.saved] == ["y"]
    assert [drops.graph.operations.name[operation] for operation, _mode in drops.runs] == [
        "F",
        "B",
        "U0",
        "U1",
    ]


def test_an_update_does_not_overtake_the_one_that_it_depends_on() -> None:
    """U0 waits for the last reader of b, so U1, which could run sooner by what it touches, does too."""
    draft = Draft("two weights")
    x, y, z = draft.tensor("x", 1, Kind.INPUT), draft.tensor("y", 1), draft.tensor("z", 1)
    a, b = (draft.tensor(name, 1, Kind.PARAMETER) for name in "ab")
    d = draft.tensor("d", 1, Kind.PARAMETER_GRADIENT)
    draft.operation("F", time=1, reads=[x, a], writes=[y])
    draft.operation("B", time=1, reads=[y], writes=[d], phase=Phase.BACKWARD)
    draft.operation("reads b", time=1, reads=[y, b], writes=[z], phase=Phase.BACKWARD)
    draft.operation("U0", time=1, reads=[d], mutates=[a, b], phase=Phase.UPDATE)
    draft.operation("U1", time=1, reads=[d], mutates=[a], phase=Phase.UPDATE)
    drops = Drops(draft.graph())
    order = [drops.graph.operations.name[operation] for operation, _mode in drops.runs]
    assert order.index("U0") < order.index("U1")
