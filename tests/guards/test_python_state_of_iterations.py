"""State that an iteration reads and then changes: the next one reads what this one has left.

A plan repeats the traced iteration. So a cache that gives the same to all is followed; what makes the second
or the third iteration compute something else is refused at the line that reads it. The oracle is eager
PyTorch, five updates with batches of which some are the same object.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Iterator
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Make = Callable[[Any], Callable[[Any, Tensor], Any]]
FOLLOWED: dict[str, Make] = {}
REFUSED: dict[str, Make] = {}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)
        self.read: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * self.read(self, x)).square().mean()


def batches() -> list[Tensor]:
    torch.manual_seed(1)
    one, other, third = (torch.randn(4, 3) for _ in range(3))
    return [one, other, other, third, one]


def losses(make: Make, *, planned: bool) -> Iterator[float]:
    module, given = Model(), batches()
    module.read = make(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    options: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}
    step = memplan.optimize(module, given[0], optimizer=optimizer, **options) if planned else None
    for x in given:
        if step is not None:
            yield step(x).item()
            continue
        optimizer.zero_grad()
        loss = module(x)
        loss.backward()
        optimizer.step()
        yield loss.item()


def followed(make: Make) -> Make:
    FOLLOWED[make.__name__] = make
    return make


def refused(make: Make) -> Make:
    REFUSED[make.__name__] = make
    return make


@pytest.mark.scripts
@pytest.mark.parametrize("name", FOLLOWED)
def test_what_gives_the_same_to_all_is_followed(name: str) -> None:
    assert list(losses(FOLLOWED[name], planned=True)) == list(losses(FOLLOWED[name], planned=False))


@pytest.mark.scripts
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_next_iteration_would_feel_is_refused(name: str) -> None:
    list(losses(REFUSED[name], planned=False))
    uses = r"test_python_state_of_iterations\.py:\d+: uses .*"
    line = rf"{uses}(which the iteration itself changes|as a number or a key)"
    with pytest.raises(memplan.MemplanError, match=line) as refusal:
        next(losses(REFUSED[name], planned=True))
    assert "\n" not in str(refusal.value)


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["statistics_of_the_first_batch", "a_first_iteration"])
def test_a_model_that_has_run_once_is_settled(name: str) -> None:
    """The way out that the refusal names."""
    results: list[list[float]] = []
    for planned in (True, False):
        module, x = Model(), batches()[0]
        module.read = REFUSED[name](module)
        module(x)
        options: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}
        run: Any = memplan.optimize(module, x, **options) if planned else module
        results.append([run(x).item() for x in batches()])
    assert results[0] == results[1]


# ── followed ────────────────────────────────────────────────────────────────────────────────────────


@followed
def a_table(m):
    m.table = None

    def read(self, x):
        if self.table is None:
            self.table = torch.arange(3.0) + 1
        return self.table

    return read


@followed
def a_table_whose_values_decide(m):
    m.table = None

    def read(self, x):
        if self.table is None or len(self.table) != len(x):
            self.table = torch.tril(torch.ones(len(x), len(x)))
        causal = bool((self.table == torch.ones(len(x), len(x)).tril()).all())
        return (self.table.sum(1, keepdim=True) / len(x)) if causal else x.sigmoid()

    return read


@refused
def a_table_that_counts_on(m):
    m.table = None

    def read(self, x):
        self.table = torch.zeros(3) if self.table is None else self.table + 1
        return x.sigmoid() if bool((self.table > 1).any()) else x.tanh()

    return read


@followed
def a_table_of_a_buffer(m):
    m.register_buffer("frequencies", torch.rand(3))
    m.tables = {}

    def read(self, x):
        if x.shape[0] not in self.tables:
            self.tables[x.shape[0]] = torch.outer(torch.arange(4.0), self.frequencies).cos()
        return self.tables[x.shape[0]]

    return read


@followed
def a_warning_given_once(m):
    m.warned = False

    def read(self, x):
        if not self.warned:
            self.warned = True
        return 2.0

    return read


@followed
def of_the_batch_that_it_is_for(m):
    """Computed anew for another batch."""
    m.last, m.mean = None, None

    def read(self, x):
        if self.last is not x:
            self.last, self.mean = x, x.mean(0)
        return self.mean

    return read


@followed
def what_was_there_is_not_used(m):
    m.hidden = None

    def read(self, x):
        if self.hidden is not None:
            self.hidden = None
        self.hidden = x.mean(0)
        return self.hidden

    return read


@followed
def an_equal_object_each_time(m):
    class Setting:
        def __init__(self, factor):
            self.factor = factor

    m.setting = Setting(2.0)

    def read(self, x):
        factor = self.setting.factor
        self.setting = Setting(factor)
        return factor

    return read


@followed
def losses_that_are_gone_at_the_end(m):
    m.losses = []

    def read(self, x):
        self.losses.append(self.layer.bias.sum())
        self.losses.append(x.mean())
        factor = 1.0 + sum(self.losses)
        self.losses.clear()
        return factor

    return read


@followed
def a_table_that_grows_with_the_batch(m):
    m.rows, m.table = 0, None

    def read(self, x):
        if self.table is None or len(x) > self.rows:
            self.rows = len(x)
            self.table = torch.arange(self.rows * 3.0).view(-1, 3).cos()
        return self.table[: len(x)]

    return read


@followed
def a_table_that_is_tried(m):
    tables = {}

    def table(size):
        try:
            return tables[size]
        except KeyError:
            tables[size] = torch.arange(float(size))
            return tables[size]

    return lambda self, x: table(x.shape[1]) + x.mean()


@followed
def a_history_that_nothing_reads(m):
    m.history = collections.defaultdict(list)

    def read(self, x):
        self.history["mean"].append(x.mean().detach())
        return 1.0 + x.mean()

    return read


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────


@refused
def whether_the_batch_is_the_last_one(m):
    m.last = None

    def read(self, x):
        factor = 2.0 if self.last is x else 1.0
        self.last = x
        return factor

    return read


@refused
def whether_the_batch_is_another_one(m):
    m.last = None

    def read(self, x):
        if x is self.last:
            return 1.0
        self.last = x
        return 3.0

    return read


@refused
def the_last_batch_in_a_dict(m):
    m.memory = {}

    def read(self, x):
        factor = 2.0 if self.memory.get("last") is x else 1.0
        self.memory["last"] = x
        return factor

    return read


@refused
def batches_in_a_list(m):
    m.memory = []

    def read(self, x):
        factor = 2.0 if any(x is each for each in self.memory) else 1.0
        self.memory.append(x)
        return factor

    return read


@refused
def the_last_batch_by_its_number(m):
    m.last = 0

    def read(self, x):
        factor = 2.0 if self.last == id(x) else 1.0
        self.last = id(x)
        return factor

    return read


@refused
def a_hidden_state(m):
    m.hidden = torch.zeros(3)

    def read(self, x):
        factor = self.hidden + 1
        self.hidden = x.mean(0)
        return factor

    return read


@refused
def a_hidden_state_that_is_missing_at_first(m):
    def read(self, x):
        factor = self.hidden if hasattr(self, "hidden") else 1.0
        self.hidden = x.mean(0)
        return factor

    return read


@refused
def a_hidden_state_that_decides(m):
    """The trace of the second iteration fails: it depends on values."""
    m.hidden = None

    def read(self, x):
        factor = 2.0 if self.hidden is not None and self.hidden.sum() > 0 else 1.0
        self.hidden = x.mean(0)
        return factor

    return read


@refused
def a_history(m):
    m.history = collections.deque(maxlen=2)

    def read(self, x):
        factor = 1.0 + sum(self.history)
        self.history.append(x.mean())
        return factor

    return read


@refused
def a_history_that_counts_later(m):
    """The first three iterations compute the same."""
    m.history = []

    def read(self, x):
        factor = 1.0 if len(self.history) < 4 else 2.0
        self.history = [*self.history, x]
        return factor

    return read


@refused
def statistics_of_the_first_batch(m):
    m.register_buffer("deviation", torch.ones(3))
    m.state = "new"

    def read(self, x):
        if self.state == "new":
            with torch.no_grad():
                self.deviation.copy_(x.std(0))
            self.state = "ready"
        return self.deviation

    return read


@refused
def weights_of_the_first_iteration(m):
    m.first = None

    def read(self, x):
        if self.first is None:
            self.first = self.layer.bias.detach().clone()
        return self.first + 1

    return read


@refused
def numbers_drawn_in_the_first_iteration(m):
    m.noise = None

    def read(self, x):
        if self.noise is None:
            self.noise = torch.rand(3)
        return self.noise

    return read


@refused
def gradients_of_the_first_iteration(m):
    """The values are the same, but no gradient follows from them in later iterations."""
    m.mode = None

    def read(self, x):
        factor = self.layer.bias + 1
        if self.mode == "later":
            factor = factor.detach()
        self.mode = "later"
        return factor

    return read


@refused
def a_first_iteration(m):
    m.first = True

    def read(self, x):
        if self.first:
            self.first = False
            return 3.0
        return 1.0

    return read


@refused
def a_mode_that_switches(m):
    m.mode = "one"

    def read(self, x):
        factor = 1.0 if self.mode == "one" else 2.0
        self.mode = "other" if self.mode == "one" else "one"
        return factor

    return read


@refused
def what_was_seen(m):
    m.seen = set()

    def read(self, x):
        factor = 1.0 if "a" in self.seen else 2.0
        self.seen.add("a")
        return factor

    return read


@refused
def how_many_entries(m):
    m.entries = {}

    def read(self, x):
        factor = 1.0 + len(self.entries)
        self.entries[len(self.entries)] = 1
        return factor

    return read


@refused
def a_member_of_an_enumeration(m):
    class State(enum.Enum):
        NEW = 1
        USED = 2

    m.state = State.NEW

    def read(self, x):
        factor = 1.0 if self.state is State.NEW else 2.0
        self.state = State.USED
        return factor

    return read


@refused
def an_object_in_the_place_of_another(m):
    class Setting:
        def __init__(self, factor):
            self.factor = factor

    m.setting = Setting(1.0)

    def read(self, x):
        factor = self.setting.factor
        self.setting = Setting(factor + 1)
        return factor

    return read


@refused
def a_number_in_a_tuple(m):
    m.pair = (1.0, 0)

    def read(self, x):
        factor = self.pair[0]
        self.pair = (factor + 1, 0)
        return factor

    return read
