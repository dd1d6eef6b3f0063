"""Ten different batches through `memplan.optimize`, with eager PyTorch's as the standard: how strangers.py
judges a model.

Each batch has other values than the last, at equal shapes: what the model's own list draws, and the lengths
that a collator pads (attention masks are ragged, with labels of -100 where a text has ended).
"""

import random
import signal
import time
import traceback
import warnings
from contextlib import suppress

import numpy as np
import torch
from memplan import MemplanError, optimize
from memplan.devices.measuring.live_bytes import live_peak
from memplan.model.iteration import Labelled, forward, tensors_in
from memplan.profiling.compare.peaks import generator_bytes
from memplan.solvers.problem import InfeasibleError

BATCHES = 10
BUDGETS = ("80%", "100%", 10**10)
"""The first for which all batches have a schedule; the last is any memory at all."""
WORKS, REFUSED, LATER, WRONG = "works", "refused", "refused later", "wrong"
CRASH, SLOW, NO_MODEL = "crash", "out of time", "no model"
LOOPS = {"outside": False, "in the plan": True}
"""Where AdamW is: whether `optimize` has the optimizer."""


def batch_of(make, seed):
    """The inputs of one batch, as another seed draws them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    return ragged(make().inputs)


def ragged(inputs):
    """With an attention mask of ones: texts end at random lengths; one is as long as the batch is."""
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    if mask is None or mask.ndim != 2 or not bool((mask == 1).all()):
        return inputs
    rows, length = mask.shape
    lengths = torch.randint(max(1, length // 3), length + 1, (rows,))
    lengths[torch.randint(rows, ())] = length
    kept = torch.arange(length) < lengths[:, None]
    labels = inputs.get("labels")
    made = inputs | {"attention_mask": kept.to(mask.dtype)}
    if labels is not None and labels.shape == mask.shape:
        made["labels"] = labels.where(kept, -100)
    return made


def start(make):
    """The iteration of the list, from one random state."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return make()


def begin():
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)


def randomness():
    numbers = np.random.get_state(legacy=False)["state"]["key"]
    return {"torch": torch.get_rng_state(), "python": hash(random.getstate()), "numpy": numbers.tobytes()}


class Training:
    """A loop's results. kept: by name what must be bitwise equal, the losses first."""

    def __init__(self, iteration):
        self.module = iteration.module
        weights = [each for each in self.module.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(weights, lr=1e-3)
        self.losses = []

    def kept(self, *, gradients):
        found = {f"loss {number}": loss for number, loss in enumerate(self.losses)}
        for name, weight in self.module.named_parameters():
            found[f"weight {name}"] = weight
            if gradients:
                found[f"gradient {name}"] = weight.grad
            for key, state in self.optimizer.state.get(weight, {}).items():
                found[f"{key} of {name}"] = state
        found |= {f"buffer {name}": buffer for name, buffer in self.module.named_buffers()}
        return {name: copy(thing) for name, thing in (found | randomness()).items()}


def copy(thing):
    return thing.detach().clone() if isinstance(thing, torch.Tensor) else thing


def differs(one, other):
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return type(one) is not type(other) or one != other
    return one.shape != other.shape or one.dtype != other.dtype or not torch.equal(bits(one), bits(other))


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def memory(*nests):
    """Bytes of the tensors' memory."""
    found = {}
    for nest in nests:
        for tensor in nest:
            with suppress(Exception):  # a subclass without storage
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(found.values())


def timed(step, times=3):
    """Seconds of the shortest."""
    found = []
    for _time in range(times):
        begun = time.perf_counter()
        step()
        found.append(time.perf_counter() - begun)
    return min(found)


def eager(make, batches):
    """What eager PyTorch makes of them, its peak and seconds at the last batch."""
    iteration = start(make)
    training = Training(iteration)
    begin()

    def step(inputs):
        training.optimizer.zero_grad()
        loss, _outputs = forward(iteration, iteration.module, inputs)
        assert loss is not None
        loss.backward()
        return loss.detach()

    for inputs in batches:
        training.losses.append(step(inputs))
        training.optimizer.step()
    result = training.kept(gradients=True)
    training.optimizer.zero_grad()
    peak = live_peak(lambda: step(batches[-1])).peak_bytes
    held = memory(iteration.module.parameters(), iteration.module.buffers())
    return result, {"eager_peak": held + peak, "eager_seconds": timed(lambda: step(batches[-1]))}


def planned(make, batches, budget, *, in_plan, time_limit):
    """The results of the same loop by `optimize`, and facts for the row. Raises what `optimize` and the step
    raise; a LaterError has the number of the batch."""
    iteration = start(make)
    training = Training(iteration)
    given = {"loss_fn": iteration.loss_fn}
    if time_limit is not None:
        given["time_limit"] = time_limit
    first, targets = parts(batches[0])
    if targets is not None:
        given["targets"] = targets
    if in_plan:
        given["optimizer"] = training.optimizer
    run = optimize(iteration.module, first, budget=budget, **given)  # by the defaults, as users do
    begin()

    def step(batch):
        inputs, targets = parts(batch)
        more = {} if targets is None else {"targets": targets}
        loss = run(**inputs, **more) if isinstance(inputs, dict) else run(*inputs, **more)
        if not in_plan:
            loss.backward()
        return loss.detach()

    for number, batch in enumerate(batches):
        training.optimizer.zero_grad()
        try:
            training.losses.append(step(batch))
        except MemplanError as error:
            raise LaterError(number, len(run.plans), error) if number else error from error
        if not in_plan:
            training.optimizer.step()
    run.restore_to_device()
    result = training.kept(gradients=not in_plan)
    training.optimizer.zero_grad()
    predicted = run.plan.figures.peak
    states = (
        [each for state in training.optimizer.state.values() for each in state.values()] if in_plan else []
    )
    tensors = [each for each in states if isinstance(each, torch.Tensor)]
    batch = list(tensors_in(batches[-1]).values())
    held = memory(iteration.module.parameters(), iteration.module.buffers(), batch, tensors)
    above = held + live_peak(lambda: step(batches[-1])).peak_bytes - predicted
    seconds = timed(lambda: step(batches[-1]))
    # Not predicted: AdamW's counts of steps, the generator's state that a repeated draw saves on the CPU.
    extra = sum(each.nbytes for each in tensors if each.ndim == 0) + generator_bytes(run.plans[0].program)
    facts = {
        "max_plans": len(run.plans),
        "peak": predicted,
        "above": above,
        "beside": extra,
        "seconds": seconds,
    }
    return result, facts


class LaterError(Exception):
    """A batch after the first is refused."""

    def __init__(self, number, plans, error):
        super().__init__(str(error))
        self.number, self.plans, self.error = number, plans, error


def parts(batch):
    inputs = batch.inputs if isinstance(batch, Labelled) else batch
    return inputs, batch.targets if isinstance(batch, Labelled) else None


def judged(make, batches, expected, *, budgets, **options):
    """The row of one loop."""
    for budget in budgets:
        row = {"budget": budget}
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found, facts = planned(make, batches, budget, **options)
        except LaterError as later:
            if isinstance(later.error, InfeasibleError) and budget != BUDGETS[-1]:
                continue
            return {
                "outcome": LATER,
                "batch": later.number,
                "max_plans": later.plans,
                "why": str(later),
                **row,
            }
        except InfeasibleError as error:
            if budget == BUDGETS[-1]:
                return {"outcome": REFUSED, "why": str(error), **row}
            continue
        except MemplanError as error:
            return {"outcome": REFUSED, "why": str(error), "kind": type(error).__name__, **row}
        except Exception as error:
            lines = traceback.format_exc().strip().splitlines()
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return {"outcome": CRASH, "why": why, "trace": lines[-12:], **row}
        row |= facts
        reported = [str(each.message)[:300] for each in said if "memplan" in str(each.filename)]
        if reported:
            row["told"] = reported
        wrong = [name for name in found if differs(expected[name], found[name])]
        if wrong:
            why = f"{len(wrong)} of {len(found)} differ from eager's: {', '.join(wrong[:4])}"
            return {"outcome": WRONG, "why": why, **row}
        if facts["above"] > facts["beside"]:
            why = f"its peak is {facts['above']:,} bytes above the predicted"
            return {"outcome": WRONG, "why": why, **row}
        return {"outcome": WORKS, "compared": len(found), **row}
    raise AssertionError


def outcome(make, time_limit, loops=LOOPS, budgets=BUDGETS):
    """By loop, the row; or {"no model": …} where eager PyTorch can't train it."""
    try:
        start(make)
        batches = [batch_of(make, 100 + number) for number in range(BATCHES)]
        expected, facts = eager(make, batches)
    except Exception as error:
        return {NO_MODEL: " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    found = {"eager": facts}
    for loop in loops:
        options = {"budgets": budgets, "in_plan": LOOPS[loop], "time_limit": time_limit}
        found[loop] = judged(make, batches, expected, **options)
        if found[loop]["outcome"] == WORKS:
            budgets = budgets[budgets.index(found[loop]["budget"]) :]
    if any(found[loop]["outcome"] == WRONG for loop in loops):
        repeated, _facts = eager(make, batches)
        unsteady = [name for name in expected if differs(expected[name], repeated[name])]
        if unsteady:
            return {NO_MODEL: f"eager PyTorch differs from itself: {', '.join(unsteady[:3])}"}
    return found


def died(code):
    """A child's end in words."""
    return (
        f"its process ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
    )
