"""A graph as a chain of blocks, as chain solvers see it: what they decide, and what that costs.

Assumes a training graph whose forward part can be cut where one tensor alone crosses
(graphs/structure/chain.py); any other is not accepted. A chain with too many blocks is cut less finely. Costs
are in the terms of Rotor's dynamic program: solvers minimise seconds within a limit of bytes. The paper's
symbols and memplan's are listed in costs.py.

In the order to read:

    runs.py         a block's passes, and from a list of them to runs of operations
    costs.py        seconds and bytes of each pass, replayed on its operations
    options.py      the options of all blocks: what each keeps and takes
    table.py        the dynamic program of Rotor and Rk-Rotor
    least.py        the sequence of least memory
    problem.py      what chain solvers start from, and how fine the chain is cut

O(edges) for runs and costs, O(L log L) to join neighbours of L blocks; the dynamic program: table.py.

References: Beaumont et al., "Optimal checkpointing for heterogeneous chains", Inria RR-9302, 2019; Zhao,
thesis, 2024, 2.1.2 and 2.5.

Public modules: costs, least, options, problem, runs, table.
"""
