"""LoHan: states on the disk, activations swapped by benefit."""
