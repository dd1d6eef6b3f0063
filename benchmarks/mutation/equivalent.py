"""Mutants that can't change any result, each with its reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "planner/simulator/curves.py",
        "byte_curves",
        "return np.array(walk.rows, np.int64).reshape(-1, len(walk.ledgers)).T",
        "return np.array(walk.rows, np.int64).reshape(-2, len(walk.ledgers)).T",
    ): "numpy takes any negative length of a dimension for the unknown one, not only -1",
    (
        "planner/replay/walk.py",
        "_left_over",
        "continue",
        "break",
    ): "only the rest of a claimed delete can have no bytes left, and it is the last entry of its ledger",
    (
        "planner/replay/clock.py",
        "period",
        "growth, half = np.zeros(queues + 1), np.zeros(queues + 1)",
        "growth, half = (np.zeros(queues + 2), np.zeros(queues + 1))",
    ): "nothing reads the entry after those of the queues and the thread",
    (
        "training/plans/agreement.py",
        "call",
        "self._ranks.numbers(*(0 for _ in _groups(buckets)))",
        "self._ranks.numbers(*(1 for _ in _groups(buckets)))",
    ): "ranks with a batch raise in any case, and no length to which they could pad is below 1",
    (
        "runtime/codegen/dry_run.py",
        "_compute",
        "graph, workspace = self.graph, 0",
        "graph, workspace = (self.graph, 1)",
    ): "the workspace is read of runs on the CPU alone, which set it",
    (
        "runtime/codegen/dry_run.py",
        "_next_iteration",
        "if (users := tuple(step - steps for step in former.users if step >= 0))",
        "self._former = [former._replace(users=users) for former in self._former if (users := tuple((step - "
        "steps for step in former.users if step >= 1)))]",
    ): "steps after step 0 have pinned all these addresses since, and waited for it",
    (
        "planner/bounds.py",
        "_needs",
        "def _needs(graph: Graph, extra: Ints, spans: _Spans, *, brought: bool = False) -> Ints:",
        "def _needs(graph: Graph, extra: Ints, spans: _Spans, *, brought: bool=True) -> Ints:",
    ): "the one call without it is for graphs in which no variant uses the host",
    (
        "planner/replay/clock.py",
        "period",
        "if waits[place] < 0:",
        "if waits[place] <= 0:",
    ): "a wait for row 0 of the same iteration reaches 0 iterations back",
    (
        "planner/replay/rows.py",
        "",
        "_KINDS, _MEMORIES = 9, MOST_MEMORIES",
        "_KINDS, _MEMORIES = (10, MOST_MEMORIES)",
    ): "any base above the largest kind encodes events",
    (
        "planner/replay/runs.py",
        "_play",
        "length, most = len(rows), 0",
        "length, most = (len(rows), 1)",
    ): "nothing reads the entry after the tensors to delete",
    (
        "planner/schedule/schedule.py",
        "rows",
        "return zip(self.verbs.tolist(), self.targets.tolist(), self.wheres.tolist(), strict=True)",
        "return zip(self.verbs.tolist(), self.targets.tolist(), self.wheres.tolist(), strict=False)",
    ): "the columns of a schedule have one length",
    (
        "solvers/offloading/offmate/least.py",
        "_offloaded_by",
        "positions.append(len(runs) + 1)",
        "positions.append(len(runs) + 2)",
    ): "either is more than one after the last run",
    (
        "solvers/recomputation/hierarchy/piece.py",
        "_until",
        "later = next((at for at, operation in enumerate(order) if operation > change), len(order))",
        "later = next((at for at, operation in enumerate(order) if operation >= change), len(order))",
    ): "a change among the operations of the order has its number",
    (
        "solvers/recomputation/partitioner/joint.py",
        "",
        "FAR = 10**9",
        "FAR = 10 ** 10",
    ): "any number above all distances says that there is no way",
    (
        "planner/replay/runs.py",
        "_prune",
        "length, fill = len(rows), 0",
        "length, fill = (len(rows), 1)",
    ): "`dead` has an entry per use, and a tensor that is made and read later has two uses and one end",
    (
        "planner/certificates/verify.py",
        "recomputation",
        "for modes, amount in zip(graph.modes, spent, strict=True):",
        "for modes, amount in zip(graph.modes, spent, strict=False):",
    ): "`spent` has an entry for each operation",
    (
        "solvers/recomputation/search/instance.py",
        "instance_of",
        "for name, rows in zip(_LISTS, (reads, before, after), strict=True):",
        "for name, rows in zip(_LISTS, (reads, before, after), strict=False):",
    ): "three names, three lists",
    (
        "solvers/workers/precompile.py",
        "_is_done",
        "message = worker.hear(0.0)",
        "message = worker.hear(1.0)",
    ): "how long a message is waited for, in a loop that waits until all is compiled",
    (
        "planner/simulator/clock.py",
        "lanes_of",
        "count += 1",
        "count += 2",
    ): "a lane that no queue holds is always free",
    (
        "planner/addresses/search.py",
        "_cheapest",
        "if cost < least - 1e-9:",
        "if cost <= least - 1e-09:",
    ): "the tolerance of sums of floats: weights that differ by it exactly are ties in either way",
}
"""(file, function, line before, line after): why no result can change."""
