"""bitsandbytes' optimizers in a plan: weights, codes, scales and tables are its own, byte by byte."""

from __future__ import annotations

import copy
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.graphs.errors import MismatchError
from memplan.updates.catalogue import is_planned
from optimizer_loops import (
    Make,
    batches,
    check_equal,
    compare,
    compare_loaded,
    compare_resumed,
    network,
    planned,
    state_of,
    step_of,
    trained,
)
from torch import nn

bitsandbytes = pytest.importorskip("bitsandbytes")

pytestmark = pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")

NAMES = [
    *("AdamW8bit", "Adam8bit", "PagedAdamW8bit", "Lion8bit", "PagedLion8bit", "SGD8bit", "RMSprop8bit"),
    *("Adagrad8bit", "AdamW", "PagedAdamW", "Lion", "PagedAdam32bit", "SGD", "RMSprop"),
]


def make_of(name: str, **options: Any) -> Make:
    given = {"lr": 1e-2, **({"momentum": 0.9} if name.startswith("SGD") else {}), **options}
    return lambda module: getattr(bitsandbytes.optim, name)(module.parameters(), **given)


@pytest.fixture(autouse=True)
def own_manager() -> Generator[None]:
    """The package's manager is one for the process."""
    yield
    bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("smallest", [1, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_weights_and_states_are_those_of_the_optimizer(name: str, smallest: int) -> None:
    found = compare(make_of(name, min_8bit_size=smallest, weight_decay=0.1), network(width=72))
    eight = "8bit" in name
    assert found["2.weight.state1"].dtype == (torch.uint8 if eight else torch.float32)
    assert found["0.weight.state1"].dtype == (torch.uint8 if eight and smallest == 1 else torch.float32)
    if eight:
        assert found["2.weight.state1"].unique().numel() > 10
        first = found["0.weight.qmap1"] if smallest == 1 else found["2.weight.qmap1"]
        assert first.data_ptr() == found["2.weight.qmap1"].data_ptr()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", ["AdamW8bit", "Lion8bit", "SGD8bit", "PagedAdamW"])
def test_clipped_and_accumulated(name: str, every: int) -> None:
    compare(make_of(name, min_8bit_size=1), network(width=72), norm=0.01, every=every)


@pytest.mark.parametrize("masters", [False, True])
def test_weights_in_bfloat16(masters: bool) -> None:
    module = network(width=72).bfloat16()
    if not masters:
        compare(make_of("AdamW8bit"), module)
        return
    planned(module, make_of("AdamW8bit")(module), master_weights=True, verify=True)


@pytest.mark.parametrize("name", ["AdamW8bit", "Lion"])
def test_states_are_loaded_both_ways(name: str) -> None:
    compare_loaded(make_of(name), network(width=72))


def test_compared_with_eager_before_training() -> None:
    compare(make_of("AdamW8bit"), network(width=72), verify=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["AdamW8bit", "PagedAdamW8bit", "Lion8bit", "PagedAdamW"])
def test_a_checkpoint_goes_on(name: str, tmp_path: Path) -> None:
    compare_resumed(make_of(name, min_8bit_size=1), network(width=72), tmp_path)


def test_a_table_of_another_package_is_refused() -> None:
    module = network(width=72)
    optimizer = make_of("AdamW8bit")(module)
    step = step_of(module, optimizer)
    step(batches(module)[0])
    row = optimizer.state[module.get_parameter("2.weight")]
    row["qmap1"] = row["qmap1"] * 0.5
    with pytest.raises(MismatchError, match=r"qmap1 of 2\.weight in the optimizer is another table"):
        step(batches(module)[1])


@pytest.mark.parametrize("way", ["module", "parameter"])
def test_bits_of_single_parameters_are_followed(way: str) -> None:
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()

    def make(module: nn.Module) -> torch.optim.Optimizer:
        if way == "module":
            manager.register_module_override(module.get_submodule("2"), "weight", {"optim_bits": 32})
        else:
            manager.override_config(module.get_parameter("2.weight"), "optim_bits", 32)
        return make_of("AdamW8bit", min_8bit_size=1)(module)

    found = compare(make, network(width=72))
    assert found["2.weight.state1"].dtype == torch.float32
    assert found["0.weight.state1"].dtype == torch.uint8


def test_bits_that_change_after_the_plan_are_refused() -> None:
    module = network(width=72)
    step = step_of(module, make_of("AdamW8bit")(module))
    step(batches(module)[0])
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.override_config(module.get_parameter("2.weight"), "optim_bits", 32)
    with pytest.raises(MismatchError, match="eight_bits is"):
        step(batches(module)[1])


def test_other_options_of_single_parameters_step_after_the_plan() -> None:
    module = network(width=72)
    other = copy.deepcopy(module)
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    optimizers = []
    for each in (module, other):
        manager.override_config(each.get_parameter("2.weight"), "lr", 0.5)
        optimizers.append(make_of("AdamW8bit")(each))
    assert not is_planned(optimizers[1])
    trained(module, optimizers[0])
    with pytest.warns(UserWarning, match="AdamW8bit is not in the plan"):
        planned(other, optimizers[1])
    check_equal(state_of(module, optimizers[0]), state_of(other, optimizers[1]))


def test_norms_of_updates_step_after_the_plan() -> None:
    module = network()
    optimizer = bitsandbytes.optim.Adam8bit(module.parameters())
    optimizer.args.max_unorm = 0.5
    assert not is_planned(optimizer)
