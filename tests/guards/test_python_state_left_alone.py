"""A trace leaves the user's model as it was: no hook, no list, no cache, no counter keeps anything of it."""

from __future__ import annotations

import gc
import random
import signal
import sys
import weakref
from collections import deque
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from memplan.guards.python_state import PythonState
from memplan.model.iteration import Iteration
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.eager import run_eager
from memplan.steps.execute import PlannedStep
from memplan.torch_support.reach import parts_with_code, reachable
from memplan.torch_support.torch_fakes import FakeTensor
from memplan.tracing.trace import trace
from not_none import not_none
from torch import nn


def planned(iteration):
    program = trace(iteration)
    return PlannedStep(iteration, program, Schedule.of(compute(i) for i in range(len(program.operations))))


def fakes(iteration):
    found = reachable({"module": iteration.module, "loss_fn": iteration.loss_fn}, parts_with_code)
    return [path for path, thing in found if isinstance(thing, FakeTensor)]


SEEN: list[torch.Tensor] = []
COUNT = 0


class Everything(nn.Linear):
    """Keeps something of every call in every kind of place."""

    calls, draws = 0, True

    def __init__(self):
        super().__init__(4, 4)
        self.outputs, self.last, self.by_name, self.few = [], None, {}, deque(maxlen=2)
        self.steps = np.zeros(2)
        self.generators = [random.Random(1), np.random.default_rng(1), torch.Generator().manual_seed(1)]
        self.closure = self.closing()
        self.hook = self.register_forward_hook(partial(self.keep, name="hooked"))

    def closing(self):
        kept, count = [], 0

        def keep(x):
            nonlocal count
            count += 1
            kept.append(x)

        return keep

    @staticmethod
    def keep(module, _inputs, output, *, name):
        module.by_name[name] = output

    def forward(self, x):
        global COUNT
        COUNT += 1
        Everything.calls += 1
        self.steps += 1
        for generator in self.generators[:2] if self.draws else ():
            generator.random()
        made = super().forward(x)
        self.outputs.append(made)
        self.last = made
        self.few.append(made)
        self.closure(made)
        SEEN.append(made)
        if not hasattr(self, "late"):
            self.late = nn.Linear(1, 1)
            self.register_buffer("table", torch.ones(1))
        return made.sum()


def numpys_numbers() -> list[int]:
    """Return the state of NumPy's own generator."""
    return np.random.get_state(legacy=False)["state"]["key"].tolist()


def test_nothing_of_a_trace_is_left():
    module = Everything()
    module.draws = False
    iteration = Iteration(module, (torch.ones(2, 4),))
    numbers = [random.getstate(), numpys_numbers(), torch.get_rng_state().tolist()]
    own = [module.generators[0].getstate(), module.generators[1].bit_generator.state]
    before = PythonState(iteration, tensors=True)
    trace(iteration)
    assert fakes(iteration) == []
    assert before.changes() == []
    assert (module.outputs, module.last, module.by_name, list(module.few), SEEN, COUNT) == (
        [],
        None,
        {},
        [],
        [],
        0,
    )
    assert (Everything.calls, module.steps.tolist()) == (0, [0, 0])
    assert not hasattr(module, "late")
    assert not hasattr(module, "table")
    assert numbers == [random.getstate(), numpys_numbers(), torch.get_rng_state().tolist()]
    assert own == [module.generators[0].getstate(), module.generators[1].bit_generator.state]


def test_what_an_iteration_changes_can_be_told_and_put_back():
    module = Everything()
    iteration = Iteration(module, (torch.ones(2, 4),))
    before = PythonState(iteration, tensors=True)
    run_eager(iteration)
    changes = before.changes()
    for name in ("module.outputs", "module.last", "module.by_name.hooked", "module.few", "module.late"):
        assert name in changes, name
    assert "module.generators.0" in changes
    before.put_back()
    assert before.changes() == []
    assert len(SEEN) == 0


@cache
def table(size):
    return torch.arange(float(size))


@lru_cache(maxsize=4)
def scale(size):
    return {"of": [torch.full((size,), 2.0)]}


class Cached(nn.Linear):
    def forward(self, x):
        return (super().forward(x) * table(4) * scale(4)["of"][0]).sum()


@pytest.mark.parametrize("warm", [False, True], ids=["first", "after an iteration"])
def test_a_cache_holds_no_tensor_of_the_trace(warm):
    """One that held a real one before would make it a constant, or be refused."""
    iteration = Iteration(Cached(4, 4), (torch.ones(2, 4),))
    if warm:
        run_eager(iteration)
    step = planned(iteration)
    assert not step.program.constants
    assert type(run_eager(iteration).loss) is torch.Tensor
    assert compare(iteration, step).equal


def test_caches_are_looked_for_again_only_when_there_is_a_new_one(monkeypatch):
    """To look through all objects takes longer than to trace a small model."""
    iteration = Iteration(Cached(4, 4), (torch.ones(2, 4),))
    trace(iteration)
    searches, search = [], gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *of: searches.append(len(of)) or search(*of))
    trace(iteration)
    assert searches == []
    gone, late = cache(torch.ones), cache(torch.ones)
    gone(4)
    late(4)
    del gone
    trace(Iteration(Later(late), (torch.ones(2, 4),)))
    assert len(searches) == 1
    assert late.cache_info().currsize == 0


def test_a_new_cache_that_the_process_leaves_out_of_collections_is_found():
    trace(Iteration(Cached(4, 4), (torch.ones(2, 4),)))
    late = cache(torch.ones)
    late(4)
    gc.freeze()
    trace(Iteration(Later(late), (torch.ones(2, 4),)))
    assert late.cache_info().currsize == 0


class Later(nn.Linear):
    def __init__(self, late):
        super().__init__(4, 4)
        self.late = late

    def forward(self, x):
        return (super().forward(x) * self.late(4)).sum()


def test_a_trace_that_fails_leaves_nothing_either():
    class Failing(Everything):
        draws = False

        def forward(self, x):
            return super().forward(x).item()

    iteration = Iteration(Failing(), (torch.ones(2, 4),))
    before = PythonState(iteration, tensors=True)
    with pytest.raises(Exception, match="values of tensors"):
        trace(iteration)
    assert before.changes() == []


def test_a_trace_that_draws_is_refused_and_leaves_nothing_either():
    iteration = Iteration(Everything(), (torch.ones(2, 4),))
    before = PythonState(iteration, tensors=True)
    with pytest.raises(Exception, match="draws Python's random numbers"):
        trace(iteration)
    assert before.changes() == []


LIBRARY = """
from torch import nn, ones
TABLES, SEEN, CALLS = {}, [], 0

class Table(nn.Linear):
    def forward(self, x):
        if "mask" not in TABLES:
            TABLES["mask"] = ones(x.shape[-1])
        SEEN.append(x)
        return (super().forward(x) * TABLES["mask"]).sum()
"""


def test_a_library_s_own_tables_keep_nothing(monkeypatch):
    library = ModuleType("some_library")
    monkeypatch.setitem(sys.modules, "some_library", library)
    exec(compile(LIBRARY, "/venv/site-packages/some_library.py", "exec"), vars(library))
    iteration = Iteration(library.Table(4, 4), (torch.ones(2, 4),))
    step = planned(iteration)
    assert (library.TABLES, library.SEEN) == ({}, [])
    assert compare(iteration, step).equal
    assert (library.TABLES, library.SEEN) == ({}, [])


def test_a_table_with_a_get_of_its_own_is_read_past_it():
    class Names(dict):
        def get(self, key):
            return super().get(str(key))

    class Named(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.names = Names(a=0)

        def forward(self, x):
            self.names["a"] += 1
            return super().forward(x).sum()

    module = Named()
    trace(Iteration(module, (torch.ones(2, 4),)))
    assert module.names == {"a": 0}


# ── transformers ────────────────────────────────────────────────────────────────────────────────────


def beit():
    from transformers import BeitConfig, BeitForImageClassification

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "image_size": 32, "patch_size": 8}
    layers: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 3}
    config = BeitConfig(**sizes, **layers, use_shared_relative_position_bias=True)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 0])}
    return Iteration(BeitForImageClassification(config).train(), inputs)


def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes: dict[str, Any] = {"hidden_sizes": [8, 16], "decoder_hidden_size": 16, "num_labels": 3}
    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        num_attention_heads=[1, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        **sizes,
    )
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(3, (2, 32, 32))}
    return Iteration(SegformerForSemanticSegmentation(config).train(), inputs)


def hidden_states():
    """A distillation loss, by the hidden states that the library's hooks collect."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    inputs = {"input_ids": torch.randint(3, 99, (2, 12)), "output_hidden_states": True}

    def loss(output) -> Any:
        return sum(each.square().mean() for each in output.hidden_states)

    return Iteration(BertModel(config).train(), inputs, loss)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("build", [beit, segformer, hidden_states])
def test_a_library_model_is_what_it_was(build):
    torch.manual_seed(0)
    iteration = build()
    state = torch.get_rng_state()
    expected = run_eager(build_again(build)).loss
    before = PythonState(iteration, tensors=True)
    step = planned(iteration)
    assert before.changes() == []
    assert fakes(iteration) == []
    torch.set_rng_state(state)
    after = run_eager(iteration).loss
    assert type(after) is torch.Tensor
    assert torch.equal(after, not_none(expected))
    before.put_back()
    comparison = compare(iteration, step)
    assert comparison.equal, comparison
    run_eager(iteration)  # installs the library's hooks for good, as an evaluation does
    step.run(iteration.inputs)


def build_again(build):
    """The same model, and the random state as it is behind the first."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    iteration = build()
    torch.set_rng_state(state)
    return iteration


def test_weak_proxies_are_passed_by():
    """What they stand for may be gone."""

    class Part:
        pass

    holder: Any = Part()
    part = Part()
    holder.there = [weakref.proxy(part)]
    assert [path for path, _thing in reachable(holder)] == [(), ("there",)]
    del part
    assert [path for path, _thing in reachable(holder)] == [(), ("there",)]


class _Costly:
    """A key whose hash is computed anew each time, as of a compiler's types."""

    hashed = 0

    def __hash__(self) -> int:
        _Costly.hashed += 1
        return 1


def test_handlers_that_a_trainer_replaced_lead_nowhere():
    """Lightning's trainer keeps all handlers; pytest's holds the session, Jupyter's the whole program."""
    elsewhere = [object()]

    def handler(_number, _frame):
        elsewhere.clear()

    module: Any = nn.Linear(2, 2)
    handlers: dict[Any, Any] = {signal.SIGTERM: handler, signal.SIGINT: signal.SIG_DFL}
    module.trainer = {"original": handlers}
    found = [thing for _path, thing in reachable({"module": module}, parts_with_code)]
    assert not any(thing is elsewhere or thing is handler for thing in found)
    handlers["called by forward"] = handler
    assert any(thing is elsewhere for _path, thing in reachable({"module": module}, parts_with_code))


def test_each_path_is_hashed_twice_at_most_however_deep_it_is():
    """What is below an optimizer is known from what is right above."""
    depth = 40
    held: Any = [[0]]
    for _ in range(depth):
        held = [{_Costly(): held}]
    module: Any = nn.Linear(2, 2)
    module.optimizer, module.held = torch.optim.SGD(module.parameters(), 0.1), held
    iteration = Iteration(module, (torch.randn(2, 2),))
    _Costly.hashed = 0
    PythonState(iteration, tensors=False)
    # A list and a dict a level, each with a path of as many keys as are above it.
    assert 0 < _Costly.hashed <= 2 * depth * (depth + 3)
