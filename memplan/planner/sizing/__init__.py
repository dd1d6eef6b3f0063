"""Memory needs of a model: the largest batch that fits, the bytes of its peak, the range of an estimate.

    sizing.py           begin here: the budget that a batch needs
    ranking.py          known schedules by their seconds, compiled
    breakdown.py        the bytes of the peak by kind
    estimate_range.py   low and high figures of an estimate
    ordinary_loop.py    the loop without a plan: updates after backward, all at once
    accumulation.py     several micro-batches per update
    eight_bit.py        optimizer states of 8 bits

Public modules: accumulation, breakdown, eight_bit, estimate_range, ordinary_loop, ranking, sizing.
"""
