"""H-ILP's program for one level of a hierarchy: clusters with options, combined within a budget.

Minimises the seconds of all runs of an H-graph's nodes within a peak of bytes, and for a cluster with at most
M_save of them after its loss. Assumes a fixed order of first runs, one run of each backward node, and one
option for a child's forward and backward. Its optimum is one over the options given. Begin with model.py: the
program, and the paper's symbols.

    model.py        the program for a budget; its rows for one value are those of checkmate/tensors.py
    graph.py        the H-graph: passes of children as nodes, tensors between them as values
    stages.py       which nodes may be recomputed, and when
    level.py        the options of a cluster: a program for each pair of budgets
    top.py          the schedule of the whole: one program for the device's budget

O(nodes² · options) columns, time exponential in the worst case. Partitions keep the nodes few, so programs
don't grow with the graph, only their number does (thesis, 3.4.6). The solver is hiremate/h_ilp.py.

Reference: X. Zhao, thesis, Université de Bordeaux, 2024, 3.4.

Public modules: graph, level, top.
"""
