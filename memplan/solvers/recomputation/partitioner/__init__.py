"""PyTorch's partitioner, which decides what `torch.compile` saves for the backward pass.

operators.py          classes of ATen's operators
joint.py              a graph as the partitioner sees one: nodes, what forward and backward need
saved.py              what is saved: rules, minimum cuts, a knapsack
torch_partitioner.py  its choice as a schedule; which share of activations is requested
"""
