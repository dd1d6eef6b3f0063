"""Sharded data parallelism at run time: the ranks, what each holds of every weight, and their collectives.

Public modules: arrival, communicator, direct_calls, fully_sharded, gathered, gradients, local_tensors,
meshes, network, ranks, shards, signs, single, store.
"""
