"""Checkpoints on chains: none, periodic, binomial, optimal and persistent.

A file for each method, from the simplest on; all but the first see a graph through `solvers/chains`.

    store_all.py                       nothing runs twice
    layer_checkpoint.py                each layer is recomputed, as by torch.utils.checkpoint
    chen_sqrt.py                       segments of equal length
    revolve.py                         fewest forward runs if all blocks are identical
    rotor.py                           blocks that differ: the one to begin with

Public modules: chen_sqrt, layer_checkpoint, rotor.
"""
