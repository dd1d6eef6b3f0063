"""The residency program's answer in fractions as a schedule.

Doors: rounding.
"""
