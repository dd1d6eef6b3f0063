"""A training graph as layers: what each of them runs and owns, what is recomputed, what is offloaded when.

Shared by LoHan, STRONGHOLD and both ZeRO systems; block swap, checkpoint-offload, by_hand, MemFerry, Offmate,
POFO and joint take single files.
Nothing is minimised here: a solver decides, these files turn that into runs and offload intervals,
planner/residency into a schedule. Assumed: a chain of at least two layers with weights, with a backward part,
and no weight used after its update; else NotAcceptedError says in one line what is missing.

| papers                      | here                                              |
|-----------------------------|---------------------------------------------------|
| layer or block i of n       | training.py: `Layer`, `TrainingLayers.layers[i]`  |
| P or w, G, OS               | `Layer.weights`, `gradients`, `states`            |
| a layer's output, x_i       | `Layer.output`                                    |
| FP, BP                      | `Layer.forward`, `backward`                       |
| CPU update                  | `TrainingLayers.host_modes`, host_variants.py     |

    training.py           begin here: the layers of a graph
    runs.py               forward, recomputation inside layers, backward, updates: the runs
    early_updates.py      updates right after the last run that they wait for
    host_variants.py      the variants that can update on the CPU
    offload_intervals.py  weights, gradients, states, activations that are offloaded between passes
    cpu_updates.py        what these systems ask of graph and machine
    windows.py            a window of layers that moves forward and back
    fewest.py             how few layers have to be offloaded, by bisection
    refusals.py           why nothing fits: the least budget, or a host too small

All is linear in the graph's edges, but for the chain and one sort.

Public modules: cpu_updates, early_updates, fewest, host_variants, offload_intervals, refusals, runs,
training, windows.
"""
