"""offload-greedy, greedy-star and l2l: weights leave between uses.

Public modules: compiling.
"""
