"""Checkpoints around layers, their inputs in host memory. Begin with checkpoint_offload.py."""
