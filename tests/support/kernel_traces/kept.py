"""Five traces by name, one of each kind of trouble.

benchmarks/strangers_traces.py writes them to instances/public/traces.
"""

from __future__ import annotations

from .traces import Trace

KEPT = {
    "shared-tower": Trace("transformer", seed=1, shared=0, in_place=True, reach=0.6),
    "narrow-bus": Trace("bottlenecks", seed=1, reach=0.3),
    "small-host": Trace("transformer", seed=3, shared=0, in_place=True, reach=0.5, host=0.1, disk=0.3),
    "two-links": Trace("cells", seed=2, shared=3, phases=True, states=2, reach=1.0, host=0.08, disk=0.5),
    "again-or-away": Trace(
        "bottlenecks", seed=2, phases=True, states=2, recompute=True, reach=0.15, host=0.2, disk=0.3
    ),
}
