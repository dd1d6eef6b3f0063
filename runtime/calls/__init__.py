"""What is known of single calls of torch.

Doors: batch_norm, ctc, cumulative_norm, fused, grouped, indices, in_layout, randomness, scatters.
"""
