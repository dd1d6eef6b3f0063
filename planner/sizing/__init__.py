"""Memory needs of a model: the largest batch that fits, the bytes of its peak, the range of an estimate.

    sizing.py           begin here: the budget that a batch needs
    breakdown.py        the bytes of the peak by kind
    estimate_range.py   low and high figures of an estimate
    ordinary_loop.py    the loop without a plan: updates after backward, all at once

Public modules: breakdown, estimate_range, ordinary_loop, sizing.
"""
