"""`plan machine`: this machine measured, or one by its name, as a machine file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ..graphs.files.documents import write_document
from ..graphs.files.machine import machine_to_document, save_machine
from ..graphs.machine import Link, Machine, Peers
from ..graphs.machines.gpus import Gpu, gpu_to_document
from ..graphs.machines.networks import NETWORKS, Way, find_network, network_rows, sharing, way_of
from ..graphs.machines.presets import Preset, described_preset, presets
from ..graphs.units import duration, format_bytes, format_rate
from ..planner.budget import spelled
from .gpu_options import host_options
from .help import PlanCommand
from .known_names import completing, machines
from .options import FILE, destination_option, device_option, output_options
from .printing.output import Output, Row, labelled, table
from .printing.output_files import destination_of, write_out

if TYPE_CHECKING:
    from ..devices.measuring.this_machine import Measured


@click.command(cls=PlanCommand)
@click.argument("name", required=False, shell_complete=completing(machines))
@host_options("memory without limit")
@click.option(
    "--ranks",
    type=click.IntRange(1, 2**20),
    help="Devices that train together, joined by --link.  [default: one]",
)
@click.option(
    "--link",
    metavar="NAME|RATE",
    help="Network of --ranks: nvlink, pcie4, pcie5, ib400, eth100, or bytes/s that a device receives, "
    "like 45GB/s, 45GB/s,30us, or 20GB/s,slot if it is the slot that copies to the host take.  [default: no "
    "network]",
)
@click.option("--list", "as_list", is_flag=True, help="List the machines known by name.")
@click.option(
    "--network",
    is_flag=True,
    help="Measure the network between the processes that torchrun has started, too.",
)
@click.option(
    "--replicas",
    type=click.IntRange(2),
    help="Sets of ranks between which gradients are averaged (HSDP), with --network.  [default: one set]",
)
@device_option("Device to measure.  [default: cuda if there is one]")
@click.option(
    "--disk", type=FILE, metavar="FOLDER", help="Folder whose disk is measured too.  [default: no disk]"
)
@destination_option("machine.yaml in the working folder if this machine is measured, else none")
@output_options
def machine(
    name: str | None,
    host: str | None,
    lanes: str | None,
    ranks: int | None,
    link: str | None,
    as_list: bool,
    network: bool,
    replicas: int | None,
    device: str | None,
    disk: Path | None,
    destination: Path | None,
    output: Output,
) -> None:
    """Measure this machine, or show the one called NAME, and write it as a machine file.

    Measured are the copies between device and host, alone, both ways at once and small ones (for what each
    takes besides its bytes), AdamW on each, and with --disk reading and writing there, past the page cache.
    Where both ways at once are slower, the file says what they share. It takes some ten seconds. With
    --network, under torchrun, all processes measure copies, gathers and scatters together, and the first
    writes the file.

    \b
    plan machine -o machine.yaml --disk /scratch
    plan machine rtx3060
    plan machine rtx4090 --host 64GB --lanes 8 -o mine.yaml
    plan machine h100 --ranks 8 --link nvlink -o eight.yaml
    torchrun --nproc-per-node 2 -m memplan machine --network -o two.yaml
    """
    if (name is not None) + as_list + (device is not None or disk is not None or network) > 1:
        raise click.UsageError("NAME, --list and measuring (--device, --disk, --network) do not go together")
    if network and (ranks or link):
        raise click.UsageError("--network measures what --ranks and --link would say: leave them out")
    if replicas is not None and not network:
        raise click.UsageError("--replicas goes with --network; for a graph: plan shard --replicas")
    if name is None and (host or lanes):
        raise click.UsageError("--host and --lanes go with NAME")
    if (ranks is None) != (link is None) or (link is not None and as_list):
        raise click.UsageError("--ranks and --link go together, with one machine: --ranks 8 --link nvlink")
    peers = None if link is None or ranks is None else find_network(link, ranks)
    way = Way.OWN if link is None else way_of(link)
    if as_list and destination:
        raise click.UsageError("-o writes one machine: it does not go with --list")
    if as_list:
        _list(output)
    elif name is not None:
        _show(_joined(described_preset(name, host, lanes), peers, way), destination, output)
    else:
        joined = partial(_with_network, peers=peers, way=way)
        _measure(device, disk, joined, destination, output, network=network, replicas=replicas)


def _list(output: Output) -> None:
    known = presets().values()
    heads = ["device", "host", "disk", "d2h", "h2d", "updates", "on host", "name"]
    networks = [[network.name, format_rate(network.rate), network.source] for network in NETWORKS.values()]
    output.result(
        {
            "machines": [_document(preset) for preset in known],
            "networks": [vars(network) for network in NETWORKS.values()],
        },
        [
            *table(heads, (_cells(preset) for preset in known)),
            Text(),
            *table(["network", "rate", "between ranks (--link)"], networks),
        ],
    )


def _joined(preset: Preset, peers: Peers | None, way: Way) -> Preset:
    """Return the preset with a network to other devices like it."""
    return replace(preset, machine=_with_network(preset.machine, peers, way))


def _with_network(machine: Machine, peers: Peers | None, way: Way) -> Machine:
    return machine if peers is None else sharing(machine, peers, way)


def _cells(preset: Preset) -> list[str]:
    machine = preset.machine
    sizes = [machine.device_capacity, machine.host_capacity, machine.disk_capacity]
    links = (machine.links.d2h, machine.links.h2d)
    rates = (*(link and link.rate for link in links), machine.updates.device, machine.updates.host)
    device, *others = ("-" if size is None else size for size in sizes)
    shown = [device if isinstance(device, str) else f"{device / 2**30:.1f} GiB"]
    shown += [size if isinstance(size, str) else f"{size / 1e9:,.0f} GB" for size in others]
    return [*shown, *map(format_rate, rates), preset.name]


def _show(preset: Preset, destination: Path | None, output: Output) -> None:
    document = {**machine_to_document(preset.machine), "gpu": gpu_to_document(preset.gpu)}
    written = write_out(destination, partial(write_document, document))
    sources = (f"{part}: {source}" for part, source in preset.sources.items())
    rows = [
        ("machine", f"{preset.name}: {preset.gpu.name}"),
        ("gpu", _gpu(preset.gpu)),
        *_machine_rows(preset.machine),
        *zip(("sources", *[""] * (len(preset.sources) - 1)), sources, strict=True),
        *written.row(),
    ]
    output.result({**_document(preset), "file": written.name}, labelled(rows))
    written.tell()


def _gpu(gpu: Gpu) -> str:
    """Return a line with what is known of a GPU in addition to the machine."""
    rates = [(name, getattr(gpu, name)) for name in ("float32", "tf32", "float16", "bfloat16")]
    shown = ", ".join(f"{name} {flops / 1e12:g}" for name, flops in rates if flops is not None)
    capability = ".".join(map(str, gpu.capability))
    return (
        f"compute capability {capability}; {spelled(gpu.total)} by CUDA, {gpu.bandwidth / 1e9:,.0f} GB/s; "
        f"{shown} TFLOP/s"
    )


def _measure(
    device: str | None,
    disk: Path | None,
    joined: Callable[[Machine], Machine],
    destination: Path | None,
    output: Output,
    *,
    network: bool,
    replicas: int | None,
) -> None:
    from ..devices.measuring.this_machine import measure_machine
    from ..devices.measuring.this_network import measure_with_network

    to = destination_of(destination, "machine", ".yaml")
    with output.status("measuring") as report:
        if network:
            found = measure_with_network(device, disk, replicas, report)
        else:
            found = measure_machine(device, disk, report)
    if found is None:  # the first of torchrun's processes writes the file
        return
    found = found._replace(machine=joined(found.machine))
    written = write_out(to, partial(save_machine, found.machine))
    output.result(
        {
            "device": found.device,
            "machine": machine_to_document(found.machine),
            "measured": [one._asdict() for one in found.rates],
            "notes": list(found.notes),
            "file": written.name,
        },
        [
            *_rate_lines(found),
            *labelled([("machine", found.device), *_machine_rows(found.machine), *written.row()]),
        ],
    )
    for note in found.notes:
        output.note(note)
    written.tell()


def _rate_lines(found: Measured) -> Iterator[Text]:
    rows = [
        [
            format_bytes(one.bytes),
            format_rate(one.low),
            format_rate(one.median),
            format_rate(one.high),
            one.what,
        ]
        for one in found.rates
    ]
    yield from table(["at a time", "low", "median", "high", "measured (quartiles)"], rows)


def _document(preset: Preset) -> dict[str, Any]:
    machine, gpu = machine_to_document(preset.machine), preset.gpu.name
    return {"name": preset.name, "gpu": gpu, "machine": machine, "sources": dict(preset.sources)}


def _machine_rows(machine: Machine) -> Iterator[Row]:
    _device, _host, *below = machine.hierarchy.tiers
    for tier in machine.hierarchy.tiers:
        if tier.capacity is not None:
            yield tier.name, spelled(tier.capacity)
        if tier.name == "host" and machine.pinned is not None:
            yield "pinned", spelled(machine.pinned)
        if tier.name == "host" and machine.unpinned:
            yield "pinned", "nothing"
    links: list[tuple[str, Link | None]] = [
        ("device to host", machine.links.d2h),
        ("host to device", machine.links.h2d),
    ]
    for tier in below:
        links += [(f"{tier.name} read", tier.read), (f"{tier.name} write", tier.write)]
    for what, link in links:
        if link is not None:
            latency = f", {duration(link.latency)} a copy" if link.latency else ""
            slower = f", {format_rate(link.pageable)} where it is not pinned" if link.pageable else ""
            sizes = f", measured at {len(link.measured)} sizes" if link.measured else ""
            yield what, format_rate(link.rate) + latency + slower + sizes
    if machine.links.peers is not None:
        yield from network_rows(machine.links.peers)
    for group in machine.shared:
        yield "take turns", ", ".join(group)
    for joint in machine.joint_rates:
        slots = f", {joint.slots} slots" if joint.slots > 1 else ""
        yield "in all", f"{', '.join(joint.links)}: {format_rate(joint.rate)}{slots}"
    for place in ("device", "host"):
        value = getattr(machine.updates, place)
        if value is not None:
            yield f"updates on the {place}", f"{format_rate(value)} of weights by AdamW"
