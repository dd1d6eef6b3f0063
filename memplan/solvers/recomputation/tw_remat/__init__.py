"""tw-remat: separators of the graph are kept."""
