"""The device that computes: memory, streams, clock, random numbers. Only this package names CUDA.

Doors: device, choice, host_room, planned_rooms, threads.
"""
