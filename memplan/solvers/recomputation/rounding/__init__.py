"""The residency program's answer in fractions as a schedule.

Public modules: rounding.
"""
