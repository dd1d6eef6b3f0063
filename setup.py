"""The packages, found: the root is `memplan`, and so are all folders in it that have an `__init__.py`."""

from setuptools import find_packages, setup

setup(
    packages=["memplan", *(f"memplan.{package}" for package in find_packages())],
    package_dir={"memplan": "."},
)
