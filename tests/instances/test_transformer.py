"""Language models from their configurations: published sizes, FLOP, the same at every granularity."""

from dataclasses import replace

import numpy as np
import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.graph import Kind, Phase
from memplan.graphs.structure.chain import chain_of
from memplan.instances.models import MODELS, Transformer, model_named
from memplan.instances.transformer import Rates, Training, model_flops, timed, transformer
from memplan.planner.baseline import baseline

RATES = Rates(flops=100e12, update_device=16.6e9, update_host=1.1e9)
SMALL = Transformer("small", 3, 64, 256, 4, 1000, "made up", positions=32)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt2", 0.124439808),
        ("gpt2-medium", 0.354823168),
        ("gpt2-large", 0.774030080),
        ("gpt2-xl", 1.557611200),
        ("llama-2-7b", 6.738415616),
        ("llama-2-13b", 13.015864320),
        ("phi-2", 2.779683840),
        *((f"lohan-{size}b", size) for size in (6, 13, 30, 70, 135, 175, 276, 412)),
    ],
)
def test_models_have_their_published_sizes(name: str, billions: float):
    """The final norm is left out; LoHan's sizes are names."""
    tolerance = 0.08 if name.startswith("lohan") else 1e-4
    assert model_named(name).parameters == pytest.approx(billions * 1e9, rel=tolerance)


def test_an_unknown_model_is_refused():
    with pytest.raises(InputError, match="unknown model 'gpt5'"):
        model_named("gpt5")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("granularity", ["layer", "sublayer", "operation"])
def test_weights_states_and_times_are_those_of_the_configuration(name: str, granularity: str):
    model, training = MODELS[name], Training(1, 128, granularity=granularity)
    graph = transformer(model, training, RATES)
    kinds, sizes = graph.tensors.kind, graph.tensors.bytes

    def total(kind: Kind) -> int:
        return int(sizes[kinds == kind].sum())

    assert total(Kind.PARAMETER) == 2 * model.parameters == total(Kind.PARAMETER_GRADIENT)
    assert total(Kind.OPTIMIZER_STATE) == 12 * model.parameters
    o = graph.operations
    seconds = o.time[o.phase != Phase.UPDATE].sum()
    assert seconds == pytest.approx(model_flops(model, training) / RATES.flops)
    assert o.time[o.phase == Phase.UPDATE].sum() == pytest.approx(2 * model.parameters / RATES.update_device)
    assert len(chain_of(graph).blocks) >= model.layers


def test_flops_are_six_for_a_parameter_and_token_where_attention_is_short():
    model, training = MODELS["llama-2-7b"], Training(1, 16)
    weights = model.parameters - model.embedding_weights
    assert model_flops(model, training) == pytest.approx(6.0 * 16 * weights, rel=1e-3)


@pytest.mark.parametrize("gated", [False, True])
def test_what_is_kept_for_backward_is_the_same_at_every_granularity(gated: bool):
    """Per token: queries, keys, values, their mix, two norms, two sums; the middle of the MLP."""
    model = replace(SMALL, gated=gated)
    token = 8 * 64 + (3 if gated else 2) * 256
    for granularity in ("layer", "sublayer", "operation"):
        graph = transformer(model, Training(2, 32, granularity=granularity, optimizer="none"), RATES)
        own = (graph.tensors.kind == Kind.ACTIVATION) & np.array(
            [x == "block.2" for x in graph.tensors.layer]
        )
        assert graph.tensors.bytes[own].sum() == 2 * 32 * token * 2


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("update", ["in-backward", "after"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "none"])
def test_graphs_run_and_keep_through_a_file(tmp_path, tied: bool, update: str, optimizer: str):
    training = Training(2, 32, optimizer=optimizer, update=update, weight_bytes=4, granularity="operation")
    graph = transformer(replace(SMALL, tied=tied), training, RATES)
    save_graph(graph, tmp_path / "small.json")
    assert baseline(load_graph(tmp_path / "small.json")) == baseline(graph)
    updates = np.flatnonzero(graph.operations.phase == Phase.UPDATE)
    weights = int((graph.tensors.kind == Kind.PARAMETER).sum())
    assert len(updates) == (0 if optimizer == "none" else weights)
    assert all(graph.operation(u).modes[0].on_host for u in updates.tolist())
    later = len(graph.operations) - len(updates)
    assert (update == "after") == bool(len(updates) and updates[0] == later) or optimizer == "none"


def test_updates_in_backward_need_less_memory():
    early, late = (
        transformer(SMALL, Training(2, 32, update=update), RATES) for update in ("in-backward", "after")
    )
    assert baseline(early).peak < baseline(late).peak
    assert baseline(early).time == pytest.approx(baseline(late).time)


def test_recomputing_layers_is_what_the_fast_mode_is_for():
    graph = transformer(SMALL, Training(2, 32, granularity="layer"), RATES)
    forward = graph.operation(graph.operation_index["F.2.block"])
    assert [graph.tensors.name[x] for x in forward.writes] == ["2.saved", "x2"]
    assert [graph.tensors.name[x] for x in forward.modes[0].writes] == ["x2"]


def test_a_memory_bandwidth_makes_small_batches_slower():
    slow = replace(RATES, bandwidth=1e9)
    graph, free = (transformer(SMALL, Training(2, 32), rates) for rates in (slow, RATES))
    assert (graph.operations.time >= free.operations.time).all()
    assert baseline(graph).time > baseline(free).time


def test_kept_scores_are_the_square_of_the_sequence():
    flash, eager = (
        transformer(SMALL, Training(2, 32, optimizer="none", keep_scores=kept), RATES)
        for kept in (False, True)
    )
    assert eager.tensors.bytes.sum() - flash.tensors.bytes.sum() == 3 * 2 * 4 * 32 * 32 * 2


def test_a_graph_takes_the_time_that_was_measured():
    graph = transformer(SMALL, Training(2, 32), RATES)
    scaled = timed(graph, 10.9)
    assert baseline(scaled).time == pytest.approx(10.9)
    update = graph.operations.phase == Phase.UPDATE
    assert (scaled.operations.time[update] == graph.operations.time[update]).all()
    ratio = scaled.operations.time[~update].sum() / graph.operations.time[~update].sum()
    for index, modes in scaled.operations.modes.items():
        if not update[index]:
            assert modes[0].time == pytest.approx(ratio * graph.operations.modes[index][0].time)
    with pytest.raises(InputError, match="updates of small-b2-s32 alone take longer"):
        timed(graph, 1e-9)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"batch": 0}, "batch must be 1 or more, not 0"),
        ({"granularity": "kernel"}, "granularity must be layer, sublayer, operation, not 'kernel'"),
        ({"optimizer": "lion"}, "optimizer must be adam, sgd, none, not 'lion'"),
        ({"update": "never"}, "update must be in-backward, after, not 'never'"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(fields: dict, fault: str):
    with pytest.raises(InputError, match=fault):
        Training(**{"batch": 2, "sequence": 8, **fields})
