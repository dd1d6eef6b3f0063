"""Cutting a graph into a chain of blocks: the promises of a chain on random training graphs, and pictures.

The strongest promise is tested by running: any order of passes that a solver for chains may choose must be a
valid schedule, by the simulator, on any graph.
"""

from __future__ import annotations

from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.files.validate import validate
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.structure.chain import Block, Chain, chain_of
from memplan.graphs.structure.valid_order import is_valid_order
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.planner.schedule.sequence import schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.chains.problem import coarser
from memplan.solvers.chains.runs import Pass, block_runs, sequence
from random_chains import random_moves
from strategies import random_graph
from training_graphs import training

graphs = st.builds(
    training,
    layers=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    skip=st.sampled_from([0.0, 0.0, 0.3]),
    update=st.sampled_from(["none", "end", "early"]),
)


def names(graph: Graph, block: Block) -> tuple[str, str, str | None]:
    """'F1 F2', 'B2 B1', 'x2': the block as words."""
    operations = graph.operations.name
    output = None if block.output is None else graph.tensors.name[block.output]
    return (
        " ".join(operations[o] for o in block.forward),
        " ".join(operations[o] for o in block.backward),
        output,
    )


@settings(max_examples=400)
@given(st.integers(0, 10**9))
def test_an_order_is_valid_where_the_simulator_takes_it(seed: int) -> None:
    """Of random graphs, the operations with a few neighbours exchanged."""
    random = Random(seed)
    graph = random_graph(random, 8)
    order = list(range(len(graph.operations)))
    for _exchange in range(random.randint(0, 4) if len(order) > 1 else 0):
        at = random.randrange(len(order) - 1)
        order[at], order[at + 1] = order[at + 1], order[at]
    try:
        simulate(graph, Schedule.of([compute(o) for o in order]))
        taken = True
    except InvalidScheduleError:
        taken = False
    assert is_valid_order(graph, order) == taken


@settings(max_examples=400)
@given(st.integers(0, 10**9))
def test_odd_graphs_give_chains_that_keep_their_promises(seed: int) -> None:
    """Forward operations behind backward ones, changes in place, contributions anywhere: see small_graphs."""
    random = Random(seed)
    graph = random_graph(random, 12)
    chain = chain_of(graph)
    assert sorted(chain.order()) == list(range(len(graph.operations)))
    assert is_valid_order(graph, chain.order())
    if len(chain.blocks) > 1:
        moves = random_moves(len(chain.blocks), random)
        simulate(graph, schedule_of(graph, sequence(chain, block_runs(graph, chain), moves)))


@settings(max_examples=300)
@given(graphs)
def test_what_a_chain_promises(graph: Graph) -> None:
    validate(graph)
    chained = chain_of(graph)
    blocks = chained.blocks
    everything = [o for b in blocks for o in (*b.forward, *b.backward)] + list(chained.after)
    assert sorted(everything) == list(range(len(graph.operations)))
    forward = [o for block in blocks for o in block.forward]
    assert forward == sorted(forward)
    inside: dict[int, set[int]] = {
        number: {x for o in block.forward for x in graph.operations.writes[o].tolist()}
        for number, block in enumerate(blocks)
    }
    anyway = chained.shared | set(graph.resident.nonzero()[0].tolist())
    for number, block in enumerate(blocks):
        entering = {blocks[number - 1].output} if number else set[int | None]()
        for o in block.forward:
            assert set(graph.operations.reads[o].tolist()) <= inside[number] | entering | anyway
        of_forward = set[int]().union(*(inside[k] for k in inside)) - set(after_loss(graph))
        for o in block.backward:
            read = set(graph.operations.reads[o].tolist()) & of_forward
            assert read <= inside[number] | entering | anyway


def after_loss(graph: Graph) -> list[int]:
    (loss,) = (graph.operations.phase == Phase.LOSS).nonzero()[0].tolist()
    return graph.operations.writes[loss].tolist()


@settings(max_examples=300)
@given(graphs, st.integers(0, 10**6))
def test_any_persistent_sequence_is_valid(graph: Graph, seed: int) -> None:
    random = Random(seed)
    chained = coarser(graph, chain_of(graph), random.randint(1, 12))
    moves = random_moves(len(chained.blocks), random)
    runs = sequence(chained, block_runs(graph, chained), moves)
    simulate(graph, schedule_of(graph, runs))


@given(graphs, st.integers(1, 6))
def test_coarser_joins_neighbours_until_few_enough(graph: Graph, blocks: int) -> None:
    fine = chain_of(graph)
    coarse = coarser(graph, fine, blocks)
    assert len(coarse.blocks) == min(blocks, len(fine.blocks))
    assert [o for b in coarse.blocks for o in b.forward] == [o for b in fine.blocks for o in b.forward]
    assert [o for b in coarse.blocks[::-1] for o in b.backward] == [
        o for b in fine.blocks[::-1] for o in b.backward
    ]
    assert {b.output for b in coarse.blocks} <= {b.output for b in fine.blocks}


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_a_chain_is_cut_behind_every_block(blocks: int) -> None:
    """F1 ─x1─ F2 ─x2─ … ─ loss: L blocks and the loss."""
    graph = chain(blocks)
    found = [names(graph, block) for block in chain_of(graph).blocks]
    expected = [(f"F{i}", f"B{i}", f"x{i}") for i in range(1, blocks + 1)]
    assert found == [*expected, ("loss", "", None)]


def test_a_skip_connection_ends_where_it_is_added() -> None:
    """The residual x1 crosses F2 and F3: they are one block with the sum. B4, which reads a gradient alone,
    runs as soon as that is there.

    x0 ─ F1 ─ x1 ─ F2 ─ x2 ─ F3 ─ x3 ─ F4 ─ x4 ─ loss
               └──────────────────────┘
    """
    draft = Draft("residual")
    x = [draft.tensor("x0", 10, Kind.INPUT)]
    a: list[int] = []
    g: dict[int, int] = {}
    for i in range(1, 5):
        x.append(draft.tensor(f"x{i}", 10))
        reads = [x[3], x[1]] if i == 4 else [x[i - 1]]
        a.append(draft.tensor(f"a{i}", 10))
        draft.operation(f"F{i}", time=1, reads=reads, writes=[x[i], a[-1]])
    g[4] = draft.tensor("g4", 10, Kind.GRADIENT)
    loss = draft.tensor("loss", 1)
    draft.operation("loss", time=1, reads=[x[4]], writes=[loss, g[4]], phase=Phase.LOSS, recompute=False)
    for i in (3, 2, 1):
        g[i] = draft.tensor(f"g{i}", 10, Kind.GRADIENT)
    draft.operation("B4", time=1, reads=[g[4]], writes=[g[3], g[1]], phase=Phase.BACKWARD)
    draft.operation("B3", time=1, reads=[g[3], x[2]], writes=[g[2]], phase=Phase.BACKWARD)
    draft.operation("B2", time=1, reads=[g[2], x[1]], writes=[g[1]], phase=Phase.BACKWARD)
    draft.operation("B1", time=1, reads=[g[1], a[0]], phase=Phase.BACKWARD)
    graph = draft.graph([loss])
    assert [names(graph, block) for block in chain_of(graph).blocks] == [
        ("F1", "B1", "x1"),
        ("F2 F3 F4", "B3 B2", "x4"),
        ("loss", "B4", None),
    ]


def masked(layers: int, mask_bytes: int) -> Graph:
    """A mask is made first and read by every F_i, by no B_i.

    m ─┬────┬────┬─ …
    x0 F1 ─ F2 ─ F3 ─ … ─ loss
    """
    draft = Draft("masked")
    x = [draft.tensor("x0", 100, Kind.INPUT)]
    mask = draft.tensor("mask", mask_bytes)
    draft.operation("mask", time=1, writes=[mask])
    for i in range(1, layers + 1):
        x.append(draft.tensor(f"x{i}", 100))
        draft.operation(f"F{i}", time=1, reads=[x[i - 1], mask], writes=[x[i]])
    loss, g = draft.tensor("loss", 1), draft.tensor(f"g{layers}", 100, Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x[-1]], writes=[loss, g], phase=Phase.LOSS, recompute=False)
    for i in range(layers, 0, -1):
        before, g = g, draft.tensor(f"g{i - 1}", 100, Kind.GRADIENT)
        draft.operation(f"B{i}", time=1, reads=[before, x[i - 1]], writes=[g], phase=Phase.BACKWARD)
    return draft.graph([loss])


def test_a_mask_that_all_layers_read_is_shared() -> None:
    graph = masked(12, mask_bytes=50)
    chained = chain_of(graph)
    assert [graph.tensors.name[x] for x in chained.shared] == ["mask"]
    assert [names(graph, block)[0] for block in chained.blocks][1:] == [
        *(f"F{i}" for i in range(2, 13)),
        "loss",
    ]


def test_a_mask_that_costs_more_than_the_cuts_save_is_not_shared() -> None:
    graph = masked(12, mask_bytes=10_000)
    chained = chain_of(graph)
    assert not chained.shared
    assert [len(block.forward) for block in chained.blocks] == [1, 12, 1]


def test_a_backward_operation_that_reads_two_blocks_joins_them() -> None:
    """B23 reads a2, inside block 2, and a3, inside block 3.

    x0 ─ F1 ─ x1 ─ F2 ─ x2 ─ F3 ─ x3 ─ loss
                   a2        a3
                    └── B23 ──┘
    """
    draft = Draft("tied")
    x = [draft.tensor("x0", 10, Kind.INPUT)]
    a: list[int] = []
    for i in range(1, 4):
        x.append(draft.tensor(f"x{i}", 10))
        a.append(draft.tensor(f"a{i}", 10))
        draft.operation(f"F{i}", time=1, reads=[x[i - 1]], writes=[x[i], a[-1]])
    loss = draft.tensor("loss", 1)
    g = [draft.tensor(f"g{i}", 10, Kind.GRADIENT) for i in range(4)]
    draft.operation("loss", time=1, reads=[x[3]], writes=[loss, g[3]], phase=Phase.LOSS, recompute=False)
    draft.operation("B23", time=1, reads=[g[3], a[1], a[2]], writes=[g[1]], phase=Phase.BACKWARD)
    draft.operation("B1", time=1, reads=[g[1], a[0]], writes=[g[0]], phase=Phase.BACKWARD)
    graph = draft.graph([loss])
    assert [names(graph, block) for block in chain_of(graph).blocks] == [
        ("F1", "B1", "x1"),
        ("F2 F3", "B23", "x3"),
        ("loss", "", None),
    ]


def test_operations_that_run_once_keep_what_they_make() -> None:
    """F2 may not run again, so x2 is shared: F1 and F2 are never run for x2's sake again."""
    draft = Draft("once")
    x = [draft.tensor("x0", 10, Kind.INPUT)]
    for i in range(1, 4):
        x.append(draft.tensor(f"x{i}", 10))
        draft.operation(f"F{i}", time=1, reads=[x[i - 1]], writes=[x[i]], recompute=i != 2)
    loss, g = draft.tensor("loss", 1), draft.tensor("g", 10, Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x[3]], writes=[loss, g], phase=Phase.LOSS, recompute=False)
    for i in (3, 2, 1):
        before, g = g, draft.tensor(f"g{i}", 10, Kind.GRADIENT)
        draft.operation(f"B{i}", time=1, reads=[before, x[i - 1]], writes=[g], phase=Phase.BACKWARD)
    graph = draft.graph([loss])
    chained = chain_of(graph)
    assert [graph.tensors.name[x] for x in chained.shared] == ["x2"]
    for seed in range(20):
        moves = random_moves(len(chained.blocks), Random(seed))
        simulate(graph, schedule_of(graph, sequence(chained, block_runs(graph, chained), moves)))


def test_an_operation_that_runs_once_may_stand_inside_a_block() -> None:
    """F3 is run again, F2 in the same block is not.

    x0 ─ F1 ─ x1 ─ F2 ─ x2 ─ F3 ─ x3 ─ loss
               └─────────────┘
    """
    draft = Draft("once inside")
    x = [draft.tensor("x0", 10, Kind.INPUT), *(draft.tensor(f"x{i}", 10) for i in (1, 2, 3))]
    draft.operation("F1", time=1, reads=[x[0]], writes=[x[1]])
    draft.operation("F2", time=1, reads=[x[1]], writes=[x[2]], recompute=False)
    draft.operation("F3", time=1, reads=[x[1], x[2]], writes=[x[3]])
    loss, g = draft.tensor("loss", 1), draft.tensor("g", 10, Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x[3]], writes=[loss, g], phase=Phase.LOSS, recompute=False)
    draft.operation("B3", time=1, reads=[g, x[3]], phase=Phase.BACKWARD)
    graph = draft.graph([loss])
    chained = chain_of(graph)
    assert [names(graph, block)[0] for block in chained.blocks] == ["F1", "F2 F3", "loss"]
    moves = [(Pass.ADVANCE, 0), (Pass.ADVANCE, 1), (Pass.SAVE, 2), (Pass.BACKWARD, 2)]
    moves += [(Pass.ADVANCE, 0), (Pass.SAVE, 1), (Pass.BACKWARD, 1), (Pass.SAVE, 0), (Pass.BACKWARD, 0)]
    runs = sequence(chained, block_runs(graph, chained), moves)
    assert [o for o, _mode in runs].count(1) == 1
    simulate(graph, schedule_of(graph, runs))


def test_constants_of_the_backward_part_are_made_where_they_are_read() -> None:
    """`one` reads nothing; B2 alone reads what it makes."""
    draft = Draft("constant")
    x = [draft.tensor("x0", 10, Kind.INPUT), *(draft.tensor(f"x{i}", 10) for i in (1, 2))]
    g = [draft.tensor(f"g{i}", 10, Kind.GRADIENT) for i in range(3)]
    loss, one = draft.tensor("loss", 1), draft.tensor("one", 10)
    for i in (1, 2):
        draft.operation(f"F{i}", time=1, reads=[x[i - 1]], writes=[x[i]])
    draft.operation("loss", time=1, reads=[x[2]], writes=[loss, g[2]], phase=Phase.LOSS, recompute=False)
    draft.operation("one", time=1, writes=[one], phase=Phase.BACKWARD)
    draft.operation("B2", time=1, reads=[g[2], x[1], one], writes=[g[1]], phase=Phase.BACKWARD)
    draft.operation("B1", time=1, reads=[g[1], x[0]], writes=[g[0]], phase=Phase.BACKWARD)
    graph = draft.graph([loss])
    assert [names(graph, block)[1] for block in chain_of(graph).blocks] == ["", "one B2 B1", ""]


def test_a_unet_is_a_chain_that_keeps_its_skips() -> None:
    graph = unet(3)
    chained = chain_of(graph)
    assert sorted(graph.tensors.name[x] for x in chained.shared) == ["down0", "down1", "down2"]
    assert len(chained.blocks) > 8


def test_a_graph_without_structure_is_one_block() -> None:
    """Every operation reads all tensors before it, the first makes two."""
    draft = Draft("clique")
    made = [draft.tensor("t", 10), draft.tensor("u", 10)]
    draft.operation("n", time=1, writes=made)
    for i in range(8):
        tensor = draft.tensor(f"t{i}", 10)
        draft.operation(f"n{i}", time=1, reads=list(made), writes=[tensor])
        made.append(tensor)
    g = draft.tensor("g", 10, Kind.GRADIENT)
    draft.operation("B", time=1, reads=made, writes=[g], phase=Phase.BACKWARD)
    assert len(chain_of(draft.graph([g])).blocks) == 1


def test_an_empty_graph_is_an_empty_block() -> None:
    assert chain_of(Draft("empty").graph()) == Chain((Block((), (), None),), frozenset(), ())


@pytest.mark.scripts
def test_a_hundred_thousand_operations_take_seconds() -> None:
    graph = chain(50_000)
    start = process_time()
    assert len(chain_of(graph).blocks) == 50_001
    assert process_time() - start < 10
