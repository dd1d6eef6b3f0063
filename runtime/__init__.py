"""From a PyTorch model to a graph, and from a schedule to a run. The only folder that imports torch."""
