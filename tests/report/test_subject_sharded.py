"""Sharded training in reports: the network is a queue of its own, and the device's curves include shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Links, Machine, Peers
from memplan.graphs.transformations.sharding import sharded
from memplan.graphs.transformations.updates import SGD, with_updates
from memplan.planner.addresses.lifetimes import lifetimes
from memplan.planner.baseline import baseline
from memplan.planner.report import Report
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.clock import Queue
from memplan.planner.simulator.simulate import simulate
from memplan.report.facts import facts
from memplan.report.picture import picture
from memplan.report.subject import Subject
from memplan.report.traces.measured import measured
from memplan.report.traces.planned import planned


def layers() -> Graph:
    graph = with_updates(chain(4), optimizer=SGD, when="in-backward", device_rate=2.0**30)
    graph = sharded(graph, Peers(2.0**20, ranks=4))
    return replace(graph, machine=Machine(links=Links(peers=Peers(2.0**20, ranks=4))))


def subject_of(graph: Graph) -> Subject:
    schedule = build_schedule(graph, Residency([(o, 0) for o in range(len(graph.operations))]))
    return Subject(graph, schedule, Report(simulate(graph, schedule).figures, baseline(graph)))


def test_the_network_is_a_row_of_the_page_the_picture_and_the_trace() -> None:
    subject = subject_of(layers())
    document = facts(subject)
    network = document["queues"].index("network")
    steps = document["steps"]["queue"]
    assert steps.count(network) == 4 + 4  # each weight is gathered once, each gradient scattered once
    assert "network" in picture(subject)
    tracks = {**planned(subject).tracks}
    assert len(tracks["network"]) == 4 + 4
    assert not {"host to device", "device to host"} & tracks.keys()
    waited = {dict(each.details).get("waited_for") for each in tracks["compute"]}
    assert "a collective" in waited


def test_collectives_that_were_measured_are_on_the_network_too() -> None:
    subject = subject_of(layers())
    gathers = [step for step, (verb, *_rest) in enumerate(subject.schedule.rows()) if verb == Verb.PREFETCH]
    spans = [(int(Queue.COMM), step, 1.0 * k, k + 0.5) for k, step in enumerate(gathers)]
    tracks = measured(subject, spans, {}).tracks
    assert tracks.keys() == {"network"}
    assert [dict(each.details)["step"] for each in tracks["network"]] == gathers != []


def test_curves_of_the_device_include_shares() -> None:
    graph = layers()
    subject = subject_of(graph)
    rows = lifetimes(graph, subject.schedule)
    assert int(rows.live().max()) == simulate(graph, subject.schedule).figures.peak
    always = rows.end - rows.start == rows.steps
    weights = graph.tensors.kind[rows.tensor] == Kind.PARAMETER
    shares = {x: -(-int(graph.tensors.bytes[x]) // 4) for x in rows.tensor[always & weights].tolist()}
    assert len(shares) == 4
    assert np.array_equal(
        rows.size[always & weights], [shares[x] for x in rows.tensor[always & weights].tolist()]
    )
