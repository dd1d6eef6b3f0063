"""Runs and weights on disk: a checkpoint holds what a run needs to go on bit by bit.

Public modules: checkpoint, holding, placed_holding, random_numbers, sharded_weights, weights.
"""
