"""Update functions around others, by name: on a master, with a moving average, if gradients are finite.

Each takes the arguments of the update function that it calls, its own state before lr and step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..program.program import Call
from .catalogue import FUNCTIONS
from .planned_optimizer import Effort, UpdateFunction, clipped


def on_master(
    weight: Tensor,
    gradient: Tensor,
    *rest: Any,
    rule: str,
    clip: Tensor | None = None,
    in_float32: bool = False,
    **hyperparameters: Any,
) -> None:
    """Update the float32 master of a weight of less precision, and round the weight to it.

    rest: states, the master, lr, step.
    in_float32: clip in float32.
    """
    *states, master, lr, step = rest
    # In the gradient's own dtype the product rounds as in clip_grad_norm_.
    gradient = clipped(gradient.float() if in_float32 else gradient, clip).float()
    RULES[rule](master, gradient, *states, lr, step, **hyperparameters)
    if not weight.is_set_to(master):  # a share in mixed precision is the master
        weight.copy_(master)


def on_rounded(
    weight: Tensor,
    gradient: Tensor,
    *rest: Any,
    rule: str,
    clip: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    """Update a weight of less precision by a gradient in float32: clipped, then rounded as `.grad` is."""
    RULES[rule](weight, clipped(gradient, clip).to(weight.dtype), *rest, **hyperparameters)


def on_average(
    weight: Tensor, gradient: Tensor, *rest: Any, of: str, decay: float, **hyperparameters: Any
) -> None:
    """Update a weight, then the moving average of it or of its master.

    rest: states, the average, lr, step.
    """
    *states, average, lr, step = rest
    RULES[of](weight, gradient, *states, lr, step, **hyperparameters)
    # A master is the last state of its rule.
    average.lerp_(states[-1] if of == on_master.__name__ else weight, 1 - decay)


def if_finite(
    weight: Tensor, gradient: Tensor, *rest: Any, update: str, infinite: Tensor, **hyperparameters: Any
) -> None:
    """Update a weight unless a gradient is infinite."""
    if not infinite:  # in host memory: no wait for the device here
        RULES[update](weight, gradient, *rest, **hyperparameters)


def in_bucket(*given: Any, each: str, **hyperparameters: Any) -> None:
    """Update several weights, by one kernel if there is one.

    given: per weight a tuple of it, its gradient and its states, then lr and step.
    each: the name of the update function.
    """
    *members, lr, step = given
    if (at_once := AT_ONCE.get(each)) is not None:
        at_once(members, lr, step, **hyperparameters)
        return
    for member in members:
        TOGETHER[each](*member, lr, step, **hyperparameters)


def in_rows(
    weight: Tensor, gradient: Tensor, *rest: Any, each: str, start: int, stop: int, **hyperparameters: Any
) -> None:
    """Update a block of a weight's rows.

    rest: the block's own states, lr, step.
    each: the name of the update function.
    """
    TOGETHER[each](weight[start:stop], gradient[start:stop], *rest, **hyperparameters)


RULES: dict[str, Callable[..., None]] = {
    **{name: function.call for name, function in FUNCTIONS.items()},
    on_master.__name__: on_master,
    on_rounded.__name__: on_rounded,
    on_average.__name__: on_average,
    in_bucket.__name__: in_bucket,
    in_rows.__name__: in_rows,
}
"""Update functions that can be called by name within another update function."""

_OF_OTHERS = ("each", "start", "stop")
"""Keywords of `in_bucket` and `in_rows` that are not those of the update function that they call."""

TOGETHER = {name: rule for name, rule in RULES.items() if rule not in (in_bucket, in_rows)} | {
    "if_finite": if_finite
}
"""Update functions of one whole weight, by name."""

AT_ONCE = {name: function.together for name, function in FUNCTIONS.items() if function.together is not None}
"""Functions that update several weights by one kernel, by the name of the function for one."""


def members(call: Call) -> list[Call]:
    """Return the updates of the weights of a bucket, each as a call."""
    keywords = {name: value for name, value in call.keywords.items() if name != "each"}
    *each, lr, step = call.arguments
    target, name = call.target, call.keywords["each"]
    if target is in_bucket:
        target = TOGETHER[name]
    else:
        keywords["update"] = name
    return [Call(target, (*one, lr, step), keywords, (), several=False) for one in each]


def runs(call: Call, rule: Callable[..., None]) -> bool:
    """Tell whether an update runs `in_bucket` or `in_rows`, by itself or within an early update."""
    return rule.__name__ in (call.target.__name__, call.keywords.get("update"))


def of_whole_weight(call: Call) -> str | None:
    """Return the name of the function in `TOGETHER` that an update runs; None for another kind of update.

    An early update calls it by name, and so can call it for several weights or for rows.
    """
    name = call.target.__name__
    if name not in TOGETHER and name not in FUNCTIONS and "update" in call.keywords:
        name = call.keywords["update"]
        return name if name in TOGETHER else None
    return name if TOGETHER.get(name) is call.target else None


def with_rule(call: Call, rule: Callable[..., None], **keywords: Any) -> Call:
    """Return an update that runs `in_bucket` or `in_rows` in place of its function. keywords: the rule's."""
    each = of_whole_weight(call)
    own = {"each": each, **keywords, **call.keywords}
    if call.target.__name__ == each:
        return replace(call, target=rule, keywords=own)
    return replace(call, keywords={**own, "update": rule.__name__})


def innermost(target: Any, keywords: Mapping[str, Any]) -> UpdateFunction:
    """Return the optimizer's own update function within an update."""
    named = {keywords.get(name) for name in ("each", "update", "of", "on", "rule")} | {target.__name__}
    return next(FUNCTIONS[name] for name in named if name in FUNCTIONS)


def is_fused(target: Any, keywords: Mapping[str, Any]) -> bool:
    """Return whether an update ends in a fused kernel."""
    return innermost(target, keywords).fused


def effort(target: Any, keywords: Mapping[str, Any]) -> Effort:
    """Count what an update costs, from the operations of PyTorch that it calls."""
    if target in (in_bucket, in_rows):
        own = {name: value for name, value in keywords.items() if name not in _OF_OTHERS}
        return effort(TOGETHER[keywords["each"]], own)
    if "update" in keywords:  # `if_finite`, or an early update, which multiplies by `clip` only when repeated
        waits = target is if_finite
        left_out = {"update"} if waits else {"update", "clip"}
        own = {name: value for name, value in keywords.items() if name not in left_out}
        inner = effort(RULES[keywords["update"]], own)
        return Effort(inner.passes, inner.temporaries + (not waits and "clip" in keywords))
    if "on" in keywords:  # on the sum of several batches, to which the gradient is added first
        inner = effort(RULES[keywords["on"]], {k: v for k, v in keywords.items() if k != "on"})
        return Effort(inner.passes + 3, inner.temporaries)
    if target is on_average:
        inner = effort(RULES[keywords["of"]], keywords)
        return Effort(inner.passes + 3 * (1 + (keywords["of"] == on_master.__name__)), inner.temporaries)
    if target is on_rounded:  # clipped, and rounded to half as many bytes
        inner = effort(RULES[keywords["rule"]], {k: v for k, v in keywords.items() if k != "clip"})
        return Effort(
            inner.passes + 2 + 2 * ("clip" in keywords), inner.temporaries + 1 + ("clip" in keywords)
        )
    if target is on_master:  # numbers twice as long, a copy of the gradient, and one back to the weight
        inner = effort(RULES[keywords["rule"]], {k: v for k, v in keywords.items() if k != "clip"})
        return Effort(2 * inner.passes + 6 + 2 * ("clip" in keywords), 2 * inner.temporaries + 2)
    return FUNCTIONS[target.__name__].effort(keywords)
