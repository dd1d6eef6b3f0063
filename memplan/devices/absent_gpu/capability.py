"""The compute capability of a GPU, by which PyTorch chooses operations."""

from __future__ import annotations

from typing import NamedTuple


class Capability(NamedTuple):
    """A GPU's compute capability, (8, 6) for instance."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def like(self) -> Capability:
        """The capability that stands for all of the same operations: tests/gpu-operations.tsv."""
        major, minor = self
        if major == 7:
            return Capability(7, 5)
        if major in (9, 10):
            return Capability(9, 0)
        return Capability(8, 6) if major == 12 or (major == 8 and minor > 0) else self

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Return the capability of a text, "8.6" for instance."""
        major, minor = text.split(".")
        return cls(int(major), int(minor))
