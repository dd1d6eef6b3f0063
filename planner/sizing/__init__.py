"""Memory needs of a model: the largest batch that fits, the bytes of its peak, the range of an estimate.

    sizing.py           begin here: the budget that a batch needs
    breakdown.py        the bytes of the peak by kind
    estimate_range.py   low and high figures of an estimate

Public modules: breakdown, estimate_range, sizing.
"""
