"""What is known of single calls of torch.

Doors: batch_norm, fused, grouped, in_layout, randomness.
"""
