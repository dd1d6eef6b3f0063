"""The device that computes: memory, streams, clock, random numbers. CUDA's name stands only here.

Doors: device, choice, host_room, planned_rooms, threads.
"""
