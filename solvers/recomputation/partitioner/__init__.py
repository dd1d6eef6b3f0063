"""PyTorch's partitioner, which decides what `torch.compile` saves for the backward pass.

operators.py          what it knows of ATen's operators
joint.py              a graph as it sees one: nodes, what forward and backward need
saved.py              what is saved: rules, minimum cuts, a knapsack
torch_partitioner.py  its choice as a schedule; which share of activations is asked for
"""
