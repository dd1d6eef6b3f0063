"""FSDP2's policies as schedules: what `fully_shard` and activation checkpointing do, for comparison and as
starts.

Public modules: fsdp.
"""
