"""Knowledge about single calls of torch: functional forms, replacements, costs that depend on the data.

Public modules: batch_norm, collectives, composite, cumulative_norm, fake_kernels, fused, grouped, in_layout,
indices, randomness, scatters, sparse.
"""
