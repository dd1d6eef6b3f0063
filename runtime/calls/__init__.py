"""Knowledge about single calls of torch: functional forms, replacements, costs that depend on the data.

Public modules: batch_norm, ctc, cumulative_norm, fused, grouped, in_layout, indices, randomness, recurrent,
scatters.
"""
