"""The version of memplan, apart from the package's root, whose names reach into every layer."""

__version__ = "0.1.0"
"""Version of the package."""
