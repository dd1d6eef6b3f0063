"""From what is away when to a schedule with its transfers.

Doors: residence, absences, demand, lives, transfers.
"""
