"""The device that computes: memory, streams, clock, random numbers. Only this package names CUDA.

Public modules: card, choice, cpu, device, host_capacity, planned_arena, threads.
"""
