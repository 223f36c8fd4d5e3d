# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's network: one namespace per machine, one for the controller, a bridge inside the controller's.

Nothing is added to the network of the machine that the lab runs on: all ends of all links are in the lab's own
namespaces, so no address of the lab can clash with one of the machine, and there is no route out.

`python -m motley_lab.net forward` lets the machine reach the lab's endpoint: it listens on 127.0.0.1 outside and
connects inside, because a socket stays in the namespace in which it was made.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CONTROLLER = "ctl"
BRIDGE = "switch0"
PREFIX_LENGTH = 24
ENGINE_PORT = 8000
_CLONE_NEWNET = 0x40000000
_RUN = Path("/run/netns")


class NetError(RuntimeError):
    """A namespace could not be made or entered."""


def _ip(*arguments: str, batch: Iterable[str] | None = None) -> str:
    """Run `ip`; with `batch`, many commands in one process."""
    command = ["ip", *arguments, *(["-batch", "-"] if batch is not None else [])]
    text = "".join(f"{line}\n" for line in batch) if batch is not None else None
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def namespace(lab: str, machine: str) -> str:
    return f"motley-{lab}-{machine}"


def exists(netns: str) -> bool:
    return (_RUN / netns).exists()


def namespaces(lab: str) -> list[str]:
    """The namespaces of a lab. Names of labs hold no dash, so `a` never finds those of `a-b`."""
    return sorted(path.name for path in _RUN.glob(f"motley-{lab}-*")) if _RUN.is_dir() else []


def pids(netns: str) -> list[int]:
    """Every process in the namespace, those in containers too."""
    return [int(line) for line in _ip("netns", "pids", netns).split()] if exists(netns) else []


def delete(netns: str) -> None:
    if exists(netns):
        _ip("netns", "del", netns)


def _links(nodes: dict[str, dict[str, Any]]) -> Iterable[tuple[str, int, dict[str, Any]]]:
    for node, facts in nodes.items():
        for index, link in enumerate(facts["hardware"]["links"]):
            yield node, index, link


def create(lab: str, nodes: dict[str, dict[str, Any]], address: str) -> None:
    """Make all namespaces and links.

    A node's port is one end of a veth pair; the other end is in the controller's namespace, on the bridge if the port
    is cabled. A port without a cable has a far end that is down, so it stays without carrier even when it is set up.
    """
    controller = namespace(lab, CONTROLLER)
    _ip(batch=[f"netns add {controller}", *(f"netns add {facts['netns']}" for facts in nodes.values())])
    inside = [
        "link set lo up",
        f"link add {BRIDGE} type bridge forward_delay 0",
        f"address add {address}/{PREFIX_LENGTH} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    ports: dict[str, list[str]] = {node: ["link set lo up"] for node in nodes}
    for order, (node, index, link) in enumerate(_links(nodes)):
        far = f"port{order}"
        inside.append(
            f"link add {far} type veth peer name {link['name']} address {link['mac']} netns {nodes[node]['netns']}"
        )
        if index == 0:
            inside += [f"link set {far} master {BRIDGE}", f"link set {far} up"]
            ports[node].append(f"address add {nodes[node]['address']}/{PREFIX_LENGTH} dev {link['name']}")
        if link["up"]:
            ports[node].append(f"link set {link['name']} up")
    _ip("-n", controller, batch=inside)
    for node, commands in ports.items():
        _ip("-n", nodes[node]["netns"], batch=commands)


def complete(lab: str, nodes: dict[str, dict[str, Any]], address: str) -> bool:
    """True if every namespace is there with its links and addresses."""
    places = {namespace(lab, CONTROLLER): (address, [BRIDGE])}
    for facts in nodes.values():
        places[facts["netns"]] = (facts["address"], [link["name"] for link in facts["hardware"]["links"]])
    for netns, (wanted, names) in places.items():
        if not exists(netns):
            return False
        try:
            found = json.loads(_ip("-n", netns, "-json", "address", "show"))
        except NetError:  # the mount point of a namespace that is gone
            return False
        addresses = {entry["local"] for link in found for entry in link.get("addr_info", [])}
        if wanted not in addresses or not {link.get("ifname") for link in found}.issuperset(names):
            return False
    return True


def enter(netns: str) -> None:
    """Move the calling thread into a namespace."""
    descriptor = os.open(_RUN / netns, os.O_RDONLY)
    try:
        if hasattr(os, "setns"):  # Python 3.12
            os.setns(descriptor, _CLONE_NEWNET)
        elif ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), netns)
    finally:
        os.close(descriptor)


class Doorway:
    """Makes sockets inside a namespace, from a thread that has moved there."""

    def __init__(self, netns: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, initializer=enter, initargs=(netns,))

    def socket(self) -> socket.socket:
        return self._thread.submit(socket.socket, socket.AF_INET, socket.SOCK_STREAM).result()

    def answers(self, address: str, port: int, *, timeout: float = 1.0) -> bool:
        with self.socket() as link:
            link.settimeout(timeout)
            return link.connect_ex((address, port)) == 0

    def close(self) -> None:
        self._thread.shutdown(wait=False)


class Forwarder:
    """127.0.0.1:PORT of the machine -> the node on which the endpoint answers."""

    def __init__(self, doorway: Doorway, addresses: Sequence[str], port: int) -> None:
        self._doorway = doorway
        self._addresses = list(addresses)
        self._port = port

    async def _connect(self) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        for address in list(self._addresses):
            link = self._doorway.socket()
            link.setblocking(False)
            try:
                await asyncio.wait_for(loop.sock_connect(link, (address, self._port)), timeout=3)
            except OSError:
                link.close()
                continue
            if address != self._addresses[0]:  # the endpoint has moved: ask there first from now on
                self._addresses.remove(address)
                self._addresses.insert(0, address)
            return link
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = await self._connect()
        if link is None:
            text = f"motley-lab: no node answers on port {self._port}\n"
            head = f"HTTP/1.1 502 Bad Gateway\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            writer.write((head + text).encode())
            await _close(writer)
            return
        inner_reader, inner_writer = await asyncio.open_connection(sock=link)
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        await asyncio.gather(_close(writer), _close(inner_writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction; its end is passed on as a half-closed connection."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _forward(lab: dict[str, Any], port: int) -> None:
    doorway = Doorway(lab["netns"][CONTROLLER])
    forwarder = Forwarder(doorway, [node["address"] for node in lab["nodes"].values()], ENGINE_PORT)
    server = await asyncio.start_server(forwarder.serve, "127.0.0.1", port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m motley_lab.net")
    parser.add_argument("what", choices=["forward"])
    parser.add_argument("--lab", required=True, type=Path, help="the lab's directory")
    parser.add_argument("--port", required=True, type=int)
    chosen = parser.parse_args(arguments)
    lab = json.loads((chosen.lab / "lab.json").read_text(encoding="utf-8"))
    asyncio.run(_forward(lab, chosen.port))


if __name__ == "__main__":
    main()
