"""Networks between ranks, and what they share with the copies to the host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Kind, Phase
from memplan.graphs.machine import JointRate, Link, Links, Machine, Memory, Peers
from memplan.graphs.machines.network_request import NetworkRequest
from memplan.graphs.machines.networks import NETWORKS, Way, sharing, way_of
from memplan.graphs.machines.nodes import part_of_node
from memplan.graphs.machines.presets import find_preset
from memplan.planner.schedule.schedule import Initial, Schedule, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate

HOST = Machine(links=Links(1.0, 1.0))
PEERS = Peers(0.5, ranks=2)

PERIODS = {
    # By hand: a gather takes 2 s, v leaves for 3 s, w comes for 3 s.
    "wires of its own": (sharing(HOST, PEERS, Way.OWN), 3.0),
    # The gather, then both copies at once, each in its direction of the slot.
    "a slot": (sharing(HOST, PEERS, Way.SLOT), 5.0),
    # It holds each direction for half of its 2 s, as it has half of the slot's rate.
    "an adapter": (sharing(HOST, PEERS, Way.ADAPTER), 4.0),
    "one direction at a time": (replace(HOST, shared=(("d2h", "h2d", "peers"),)), 8.0),
}


@pytest.mark.parametrize(("machine", "period"), PERIODS.values(), ids=PERIODS)
def test_gathers_and_copies_by_hand(machine: Machine, period: float) -> None:
    draft = Draft("a collective and an update")
    w, v = draft.tensor("w", 3, Kind.PARAMETER), draft.tensor("v", 3, Kind.PARAMETER)
    draft.operation("gather", time=2.0, writes=[draft.tensor("x", 1)])
    draft.operation("change v", time=0.0, mutates=[v], phase=Phase.UPDATE, recompute=False)
    graph = draft.graph()
    graph = replace(graph, operations=replace(graph.operations, comm=frozenset({0})))
    steps = [compute(1), compute(0), delete(2), offload(v), prefetch(w), delete(w), delete(v, Memory.HOST)]
    found = simulate(graph, Schedule.of(steps, Initial(host=[w])), machine=machine)
    assert found.figures.time == pytest.approx(period)


@pytest.mark.parametrize(
    ("text", "way"),
    [
        *((name, network.way) for name, network in NETWORKS.items()),
        ("45GB/s", Way.OWN),
        ("20GB/s,slot", Way.SLOT),
        ("20GB/s,30us,Slot", Way.SLOT),
        ("45GB/s,adapter", Way.ADAPTER),
    ],
)
def test_which_wires_a_network_takes(text: str, way: Way) -> None:
    assert way_of(text) == way


def test_a_rank_on_pcie_shares_its_slot_and_one_on_nvlink_does_not() -> None:
    card = find_preset("rtx4090").machine
    for link, shared, joint in (
        ("nvlink", (), ()),
        ("pcie4", (("d2h", "peers"), ("h2d", "peers")), ()),
        ("eth100", (), ("d2h", "h2d")),
    ):
        request = NetworkRequest(ranks=2, link=link)
        rank = request.machine_of_rank(card, request.peers(None, None))
        assert rank.shared == shared
        assert tuple(each.links for each in rank.joint_rates) == tuple((name, "peers") for name in joint)
    # Of a network in a machine file the file says what it shares.
    own = replace(card, links=replace(card.links, peers=PEERS), shared=(("peers", "cpu"),))
    assert NetworkRequest().machine_of_rank(own, PEERS).shared == own.shared
    assert sharing(own, PEERS, Way.SLOT).shared == own.shared


def test_ranks_have_equal_parts_of_what_several_slots_share() -> None:
    """A root complex of 60 B/s under four slots of 25: two ranks have 30 each, four 15, less than a slot."""
    slots = JointRate(("d2h", "h2d"), 60.0, slots=4)
    disks = JointRate(("disk_read", "disk_write"), 40.0)
    node = Machine(links=Links(25.0, 25.0, 30.0, 30.0), joint_rates=(slots, disks))
    for ranks, link, rate in ((1, 25.0, 60.0), (2, 25.0, 30.0), (4, 15.0, 15.0), (8, 15.0, 15.0)):
        part = part_of_node(node, ranks)
        assert part.links.d2h == part.links.h2d == Link(link)
        assert part.joint_rates[0] == JointRate(("d2h", "h2d"), rate)
        # The disks are the node's, whatever the slots.
        assert part.joint_rates[1].rate == 40.0 / ranks
        assert part.links.disk_read == Link(30.0 / ranks)
