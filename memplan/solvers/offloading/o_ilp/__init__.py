"""O-ILP: which fractions of weights, states, activations are where in each step; then whole tensors.

Minimises Σ_t Time_t, the seconds of an iteration of 2L steps (the forward and backward parts of L blocks),
within M_GPU and M_CPU bytes. Assumed: one option a block; what a block needs is on the device for all of its
step; what comes in a step takes memory from its start, what leaves until its end; after each step comes a
barrier.

Reference: X. Zhao, Optimizing memory usage when training deep neural networks, thesis, Université de
Bordeaux, 2024, tel-04890912, 4.3.4 to 4.6.

| thesis                    | here                                           |
|---------------------------|------------------------------------------------|
| w, g_w, P_t, α, T_t^o     | iteration.py: `Group`, `Option`                |
| M_GPU, M_CPU, β, H        | iteration.py: `Limits`                         |
| Comp_i^o, Time_t, r       | columns.py: `choice`, `time`, `share`          |
| X_w, Sto, Prf, Ofl, Opt   | weights.py, the table                          |
| StoO, PrfO, OflO          | states.py: `stored`, `fetched`, `left`         |
| S_i^o, O_i^o              | activations.py                                 |

    iteration.py    begin here: what the program knows of an iteration, and of the machine
    model.py        the program; every equation that had to be read otherwise
    columns.py      columns and rows that its parts share
    weights.py, states.py, activations.py   its three parts
    round.py        from fractions to an option a block, an update a parcel
    tensors.py      Algorithm 8: from fractions to whole tensors; subset_sum.py, its SELECT

O(L²) columns and rows, solved in fractions; with its integers it is exponential at worst. Algorithm 8 solves
O(L) subset-sum problems for each group. The blocks and the loop around the program: ../offmate.

Public modules: activations, iteration, model, round, states, tensors, weights.
"""
