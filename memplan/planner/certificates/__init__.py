"""Certificates: what proves the claims of a schedule, checked without the solvers and the simulator.

Public modules: verify.
"""
