"""Solvers of sharded training: FSDP2's policies as schedules, for comparison and as starts; and the least
memory.

Public modules: fsdp, fsdp_tuned, policies, unit_lifetimes.
"""
