"""H-Partition: a graph as a hierarchy of small convex clusters."""
