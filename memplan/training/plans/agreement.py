"""The plan of a batch, agreed between the ranks of sharded training: all run the same one, or none does.

Before each iteration every rank tells which plan its batch needs, or the form of a batch that has none yet.
That is one gather of a few numbers between CPUs. If ranks differ they look for a plan that takes the batches
of all, and make one if there is none: layouts may differ. If their batches have other shapes, or one refuses
its batch, all raise one line, and the training can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple
from zlib import crc32

from ...devices.sharded.ranks import Ranks
from ...graphs.errors import MemplanError, MismatchError
from ...model.iteration import Inputs, Purpose, tensors_in
from ...steps.execute import PlannedStep
from ...steps.inputs import OtherShapeError
from .buckets import Buckets

SharedCall = Literal["update", "save", "load"]
"""Methods of a step that have no batch, and that all ranks call together."""

_REFUSED = -1
"""Number of a batch that a rank refuses."""

_SHARED: dict[SharedCall, int] = {"update": -2, "save": -3, "load": -4}

_NO_BATCH = (_REFUSED, *_SHARED.values())

_PURPOSES: dict[Purpose, int] = {"train": 0, "part": 1, "evaluate": 2, "predict": 3}
_CALLS = ("__call__", "__call__", "evaluate", "predict")


class Found(NamedTuple):
    """The plan for some inputs.

    step: None if there is none yet.
    inputs: as the step takes them, or is to be made for.
    refused: why other steps do not take them.
    differs: which ranks need a new plan, and why, if others do not.
    """

    step: PlannedStep | None
    inputs: Inputs
    refused: OtherShapeError | None = None
    differs: str = ""


Find = Callable[[Sequence[Inputs], Sequence[PlannedStep]], Found]
"""Finds, among plans, that for inputs that may be padded in several ways, the shortest first."""


class Agreement:
    """Agreement of all ranks on the plan of their batches. one_form: whether these must have one form."""

    def __init__(self, ranks: Ranks, purpose: Purpose, *, one_form: bool) -> None:
        self._ranks, self._purpose, self._one_form = ranks, _PURPOSES[purpose], one_form

    def find(
        self, steps: Sequence[PlannedStep], buckets: Buckets | None, inputs: Inputs, find: Find
    ) -> Found:
        """Return what `find` finds, the same plan on all ranks, or none on all.

        steps: the plans, in one order on all ranks.
        Raises MismatchError, on all ranks, if one refuses its batch, or makes another call.
        """
        options, found, failed = list[Inputs](), None, None
        try:
            options = self._options(buckets, inputs)
            found = find(options, steps)
        except MemplanError as error:
            failed = error
        number = _REFUSED
        if found is not None:
            # Ranks gather numbers, and `hash` of a text differs from process to process.
            form = crc32(_described(_form(found.inputs)).encode()) if self._one_form else 0
            # From -5 down: -1 to -4 are calls without a batch.
            number = -5 - form if found.step is None else steps.index(found.step)
        if self._compare(number, found, failed):
            assert found is not None
            return found
        taking = [place for place, step in enumerate(steps) if find(options, [step]).step is not None]
        all_taking = self._ranks.gathered(taking)
        if common := sorted(set(all_taking[0]).intersection(*all_taking[1:])):
            return find(options, [steps[common[0]]])
        assert found is not None
        all_refused = self._ranks.gathered(None if found.refused is None else str(found.refused))
        rank, why = next(((n, each) for n, each in enumerate(all_refused) if each is not None), (0, ""))
        return Found(None, options[0], found.refused, f"rank {rank} needs another plan than others: {why}")

    def call(self, buckets: Buckets | None, call: SharedCall) -> None:
        """Agree on a call without a batch. Raises MismatchError on all ranks if one makes another."""
        if buckets is not None:
            self._ranks.numbers(*(0 for _ in _groups(buckets)))
        self._compare(_SHARED[call], None, None, call)

    def _compare(
        self, number: int, found: Found | None, failed: MemplanError | None, call: SharedCall | None = None
    ) -> bool:
        """Tell whether all ranks have this number. Raises MismatchError if one refuses its batch, or has one
        of another shape, or makes another call.
        """
        mine = [self._purpose, number]
        others = self._ranks.numbers(*mine)  # one that refuses takes part: the others wait for it
        if number != _REFUSED and all(each == mine for each in others):
            return True
        # Ranks see the same rows: all of them refuse, or none.
        if any(there != self._purpose or number in _NO_BATCH for there, number in others):
            self._refuse(found, failed, call)
        assert found is not None
        if self._one_form:
            self._check_forms(self._ranks.gathered(_form(found.inputs)))
        return False

    def _check_forms(self, forms: Sequence[Mapping[str, tuple[str, list[int]]]]) -> None:
        """Raise MismatchError if a rank's batch has another form than rank 0's."""
        first = forms[0]
        for rank, form in enumerate(forms):
            if form == first:
                continue
            if _sizeless(form) == _sizeless(first):
                cure = (
                    "by padding (pad_values=, pad_to_lengths=) or by dropping smaller last batches "
                    "(drop_last=True)"
                )
            else:
                cure = "with the same inputs, dtypes and numbers of dimensions"
            raise MismatchError(
                f"ranks 0 and {rank} have batches of different forms, {_described(first)} and "
                f"{_described(form)}: give all ranks one form, {cure}"
            )

    def _options(self, buckets: Buckets | None, inputs: Inputs) -> list[Inputs]:
        """Return the inputs as they may be padded: to lengths that fit the batches of all ranks."""
        if buckets is None:
            return [inputs]
        groups, own, failed = _groups(buckets), dict[str, int](), None
        try:
            own = dict(buckets.lengths(inputs))
        except MemplanError as error:  # the others wait for this rank's lengths
            failed = error
        all_lengths = self._ranks.numbers(*(own.get(group, 0) for group in groups))
        if failed is not None:
            raise failed
        longest = dict(zip(groups, map(max, zip(*all_lengths, strict=True)), strict=True))
        return buckets.options(inputs, {group: longest[group] for group in own})

    def _refuse(self, found: Found | None, failed: MemplanError | None, call: SharedCall | None) -> None:
        """Raise one line about the ranks whose calls do not go together, or one that refuses its batch."""
        why = None if failed is None else str(failed)
        mine = (why, call or f"{_CALLS[self._purpose]}")
        others = self._ranks.gathered(mine)
        if failed is not None:
            raise failed
        for rank, (why, name) in enumerate(others):
            if name in _SHARED:
                raise MismatchError(
                    f"rank {rank} of {len(others)} calls step.{name}, and not all ranks do: call it on all "
                    "ranks together, or on none"
                )
            if why is not None:
                raise MismatchError(f"rank {rank} of {len(others)} refuses its batch: {why}")
        first = others[0][1]
        rank, name = next((rank, name) for rank, (_why, name) in enumerate(others) if name != first)
        raise MismatchError(
            f"ranks 0 and {rank} make different calls, step.{first} and step.{name}: all ranks make each "
            "call together"
        )


def _groups(buckets: Buckets) -> list[str]:
    return sorted({pad.group for pad in buckets.pads.values()})


def _form(inputs: Inputs) -> dict[str, tuple[str, list[int]]]:
    """Return dtypes and shapes of a batch's tensors, without their layouts."""
    tensors = tensors_in(inputs).items()
    return {name: (str(each.dtype).removeprefix("torch."), [*each.shape]) for name, each in tensors}


def _sizeless(form: Mapping[str, tuple[str, list[int]]]) -> dict[str, tuple[str, int]]:
    """Return dtypes and numbers of dimensions."""
    return {name: (dtype, len(shape)) for name, (dtype, shape) in form.items()}


def _described(form: Mapping[str, tuple[str, list[int]]]) -> str:
    """Describe a form: `input_ids int64 [4, 16]`."""
    return ", ".join(f"{name} {dtype} {shape}" for name, (dtype, shape) in form.items())
