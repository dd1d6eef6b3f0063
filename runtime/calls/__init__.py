"""What is known of single calls of torch.

Doors: batch_norm, ctc, fused, grouped, in_layout, randomness, scatters.
"""
