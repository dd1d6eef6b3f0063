"""Knowledge about single calls of torch: functional forms, replacements, costs that depend on the data.

Doors: batch_norm, ctc, cumulative_norm, fused, grouped, indices, in_layout, randomness, recurrent, scatters.
"""
