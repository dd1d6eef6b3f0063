"""The fixtures of tests of `plan bench`."""

from bench_fixtures import bench as bench
from bench_fixtures import rows as rows
