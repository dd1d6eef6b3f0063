"""Memories, streams and ranks: what runs there, what it holds, how long it takes."""
