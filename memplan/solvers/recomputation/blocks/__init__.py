"""A block of a chain, and the options to run it: what its forward keeps, and what its backward recomputes.

Minimised are the seconds of both parts: for fewer and fewer bytes kept (greedy.py), or within M_peak and
M_save (kinds.py, by Rk-Checkmate). Assumes a block that can be recomputed from its input. Identical blocks
share their options. rockmate and offmate choose among them.

| paper (thesis, 2.5.1)   | here                                                                     |
|-------------------------|--------------------------------------------------------------------------|
| F_s^o                   | Option.forward; `first` in its first run, `turn` if B_s^o follows        |
| B_s^o                   | Option.backward                                                          |
| r(F_s^o) + r(B_s^o)     | OptionCost.both · PlacedBlock.seconds                                    |
| x̄_s^o                   | OptionCost.saved_bytes; the block's output counts, its input does not    |
| tmp(F_s^o), tmp(B_s^o)  | OptionCost.forward_peak, backward_peak: what is saved counts there too   |
| (M_peak, M_save)        | Budgets in kinds.py                                                      |

In the order to read:

    placed.py       a block with what surrounds it; which blocks are identical
    option.py       an option and its replayed cost, linear in its runs
    greedy.py       options without integer programs, O(n²) replays for n tensors
    kinds.py        a block as a separate training graph; the options of a kind of block; an integer program
                    for each pair of budgets, exponential

Reference: Zhao et al., Rockmate, ICML 2023, arXiv:2307.01236; Zhao, thesis, 2024, 2.4 to 2.6.

Public modules: greedy, kinds, option, placed.
"""
