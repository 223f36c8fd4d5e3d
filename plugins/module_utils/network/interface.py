# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The link of a node that carries NCCL and Gloo: the one that owns the node's address on the inter-node network.

Input is what `talosctl get links|addresses|routes -o json` answers, already parsed: resources with `metadata` and `spec`.
A choice is made only where one link fits; everything else is refused with the candidates and why the others fell out.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

Resources = Iterable[Mapping[str, Any]]

# Kinds (as the kernel names them) that carry traffic of the machine itself; "" is a physical link.
_GOOD_KINDS = {"": "physical", "bond": "bond", "bridge": "bridge", "vlan": "vlan", "team": "bond"}
# Links of container networks: they have addresses, and none of them leads to another node's machine.
_CONTAINER = re.compile(r"(cni|docker|podman|virbr|lxc|lxd|veth|cali|cilium|flannel|kube-|nodelocaldns|tunl|weave|genev|nerdctl|br-[0-9a-f]{12}$).*")
# A ConnectX port of a DGX Spark shows two functions: enp1s0f0np0 and its twin enP2p1s0f0np0.
_CONNECTX = re.compile(r"en(?P<domain>P[0-9a-f]+)?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d+)np(?P<port>\d+)")


@dataclass(frozen=True)
class Link:
    """One network link of a node."""

    name: str
    index: int
    kind: str
    type: str
    up: bool
    master: int
    aliases: tuple[str, ...]
    driver: str
    speed_mbit: int
    mtu: int
    bus: str
    addresses: tuple[str, ...]

    @property
    def sort(self) -> str:
        """What sort of link it is, for people."""
        return _GOOD_KINDS.get(self.kind, self.kind)


@dataclass(frozen=True)
class Choice:
    """The link that was chosen, and why not the others."""

    interface: str
    address: str
    sort: str
    speed_mbit: int
    mtu: int
    driver: str
    rejected: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    rdma: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for nodes.json."""
        return {
            "name": self.interface,
            "address": self.address,
            "kind": self.sort,
            "speed_mbit": self.speed_mbit,
            "mtu": self.mtu,
            "driver": self.driver,
            "rdma": self.rdma,
        }


def links(resources: Resources, addresses: Resources) -> list[Link]:
    """Links with their addresses, in the kernel's order."""
    owned: dict[str, list[str]] = {}
    for item in addresses:
        spec = item.get("spec") or {}
        owned.setdefault(str(spec.get("linkName", "")), []).append(str(spec.get("address", "")))
    found = []
    for item in resources:
        spec, name = item.get("spec") or {}, str((item.get("metadata") or {}).get("id", ""))
        state = str(spec.get("operationalState", ""))
        aliases = [*(spec.get("altNames") or []), *([spec["alias"]] if spec.get("alias") else [])]
        found.append(
            Link(
                name=name,
                index=int(spec.get("index", 0)),
                kind=str(spec.get("kind", "")),
                type=str(spec.get("type", "")),
                # Some drivers never report an operational state; carrier (linkState) then decides.
                up=bool(spec.get("linkState", False)) and state in ("up", "unknown", ""),
                master=int(spec.get("masterIndex", 0)),
                aliases=tuple(str(a) for a in aliases),
                driver=str(spec.get("driver", "")),
                speed_mbit=_speed(spec.get("speedMbit")),
                mtu=int(spec.get("mtu", 0)),
                bus=str(spec.get("busPath", "")),
                addresses=tuple(owned.get(name, ())),
            )
        )
    return sorted(found, key=lambda link: (link.index, link.name))


def _speed(value: Any) -> int:
    speed = int(value or 0)
    return 0 if speed >= 2**31 - 1 else speed  # links without carrier report the largest number that fits


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_interface(text).ip
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_interface(text).network
    except ValueError:
        return None


def _rejection(link: Link) -> str:
    """Why a link can not carry traffic between nodes, whoever owns the address; empty if it can."""
    if link.type == "loopback" or link.name == "lo":
        return "loopback"
    if _CONTAINER.fullmatch(link.name):
        return "container network"
    if link.type not in ("ether", ""):
        return f"not ethernet ({link.type})"
    if link.kind not in _GOOD_KINDS:
        return f"virtual link ({link.kind})"
    if link.master and not link.addresses:
        return "part of a bond or bridge"
    if not link.up:
        return "down"
    if not any((ip := _ip(a)) and not ip.is_link_local for a in link.addresses):
        return "no address"
    return ""


def choose(
    found: Sequence[Link], *, node: str, address: str, interface: str | None = None, routes: Resources = (), peers: Sequence[str] = ()
) -> Choice:
    """The link of `node` that owns `address`; `interface` is the operator's own choice, which is checked, not trusted."""
    wanted_ip = _ip(address)
    if wanted_ip is None:
        raise MotleyError(f"{address!r} is no IP address", node=node, hint="set motley_address to the node's address on the inter-node network")
    rejected = {link.name: why for link in found if (why := _rejection(link))}
    owners = [link for link in found if wanted_ip in [_ip(a) for a in link.addresses]]
    if interface:
        chosen = _checked(found, node=node, address=address, interface=interface, owners=owners, rejected=rejected)
    else:
        chosen = _owner(found, node=node, address=address, owners=owners, rejected=rejected)
    _check_routes(chosen, node=node, routes=routes, peers=peers)
    others = {link.name: rejected.get(link.name, "does not own the inter-node address") for link in found if link.name != chosen.name}
    return Choice(
        interface=chosen.name,
        address=address,
        sort=chosen.sort,
        speed_mbit=chosen.speed_mbit,
        mtu=chosen.mtu,
        driver=chosen.driver,
        rejected=others,
        warnings=tuple(_warnings(chosen, found)),
        rdma=rdma_devices(chosen, found),
    )


def _candidates(found: Sequence[Link], rejected: Mapping[str, str]) -> str:
    good = [f"{link.name} ({', '.join(link.addresses)})" for link in found if link.name not in rejected]
    return ", ".join(good) or "none"


def _evidence(found: Sequence[Link], rejected: Mapping[str, str]) -> list[str]:
    return [f"{link.name}: {rejected.get(link.name) or 'candidate, ' + ', '.join(link.addresses)}" for link in found]


def _owner(found: Sequence[Link], *, node: str, address: str, owners: Sequence[Link], rejected: Mapping[str, str]) -> Link:
    usable = [link for link in owners if link.name not in rejected]
    if len(usable) == 1:
        return usable[0]
    if len(usable) > 1:
        names = ", ".join(link.name for link in usable)
        raise MotleyError(
            f"{address} is on several links: {names}",
            node=node,
            hint=f"take the address off all but one of them, or set motley_interface for {node} to one of {names}",
            evidence=_evidence(found, rejected),
        )
    if owners:
        link = owners[0]
        why = rejected[link.name]
        hint = "check the cable and the switch port, or give the node an address on a link that is up"
        if why == "container network" or why.startswith("virtual"):
            hint = f"set motley_address for {node} to its address on a link of the machine itself: {_candidates(found, rejected)}"
        raise MotleyError(f"{address} is on {link.name}, which can not be used: {why}", node=node, hint=hint, evidence=_evidence(found, rejected))
    owned = ", ".join(f"{a} on {link.name}" for link in found if link.name not in rejected for a in link.addresses) or "no usable address at all"
    raise MotleyError(
        f"{address} is not on any link of this node ({owned})",
        node=node,
        hint=f"set motley_address for {node} to one of its addresses, or correct the machine's static address "
        f"(candidates: {_candidates(found, rejected)})",
        evidence=_evidence(found, rejected),
    )


def _checked(
    found: Sequence[Link], *, node: str, address: str, interface: str, owners: Sequence[Link], rejected: Mapping[str, str]
) -> Link:
    """The operator's interface, if it exists, is up and owns the inter-node address."""
    chosen = next((link for link in found if interface == link.name or interface in link.aliases), None)
    right = next((link.name for link in owners if link.name not in rejected), None)
    if chosen is None:
        fit = right or next(iter(difflib.get_close_matches(interface, [link.name for link in found if link.name not in rejected], n=1)), None)
        fix = f"set motley_interface for {node} to {fit}, or leave it out" if fit else f"leave motley_interface out for {node}"
        raise MotleyError(
            f"{node} has no link named {interface} (candidates: {', '.join(link.name for link in found if link.name not in rejected) or 'none'})",
            node=node,
            hint=f"{fix}: interface names differ between machines, so motley_interface belongs to one host, never to all",
            evidence=_evidence(found, rejected),
        )
    if chosen.name in rejected:
        raise MotleyError(
            f"motley_interface {interface} can not be used: {rejected[chosen.name]}",
            node=node,
            hint=f"set motley_interface for {node} to {right}" if right else f"candidates: {_candidates(found, rejected)}",
            evidence=_evidence(found, rejected),
        )
    if chosen.name not in [link.name for link in owners]:
        where = f"it is on {right}" if right else "no link of this node has it"
        raise MotleyError(
            f"motley_interface {interface} does not own the inter-node address {address}: {where}",
            node=node,
            hint=f"set motley_address for {node} to an address of {chosen.name} ({', '.join(chosen.addresses)})"
            + (f", or motley_interface to {right}" if right else ""),
            evidence=_evidence(found, rejected),
        )
    return chosen


def _check_routes(chosen: Link, *, node: str, routes: Resources, peers: Sequence[str]) -> None:
    """Traffic to every other node must leave by the chosen link."""
    table = list(routes)
    for peer in peers:
        out = route_link(table, peer)
        if out and out != chosen.name:
            raise MotleyError(
                f"the way from {node} to {peer} leaves by {out}, not by {chosen.name}, which owns {', '.join(chosen.addresses)}",
                node=node,
                hint=f"put both nodes into one subnet on {chosen.name}, or set motley_address to the address on {out}",
            )


def route_link(routes: Resources, peer: str) -> str:
    """The link by which `peer` is reached: longest prefix, then lowest metric, of the main table. Empty if no route says."""
    target = _ip(peer)
    best: tuple[int, int, str] | None = None
    for item in routes:
        spec = item.get("spec") or {}
        name = str(spec.get("outLinkName", ""))
        if not name or target is None or str(spec.get("table", "main")) not in ("main", "254", "") or spec.get("type", "unicast") != "unicast":
            continue
        family = str(spec.get("family", ""))
        if family and family != f"inet{target.version}":
            continue
        text = str(spec.get("dst", "") or ("0.0.0.0/0" if target.version == 4 else "::/0"))
        network = _network(text)
        if network is None or target not in network:
            continue
        rank = (-network.prefixlen, int(spec.get("priority", 0)), name)
        best = rank if best is None or rank < best else best
    return best[2] if best else ""


def _twin(name: str, found: Sequence[Link]) -> Link | None:
    mine = _CONNECTX.fullmatch(name)
    if not mine:
        return None
    for link in found:
        other = _CONNECTX.fullmatch(link.name)
        if other and link.name != name and other.group("bus", "slot", "function", "port") == mine.group("bus", "slot", "function", "port"):
            return link
    return None


def rdma_devices(chosen: Link, found: Sequence[Link]) -> str | None:
    """The RDMA devices of a ConnectX port, both halves of it (`rocep1s0f1,roceP2p1s0f1`); None on any other link."""
    twin = _twin(chosen.name, found)
    if twin is None:
        return None
    halves = sorted((chosen.name, twin.name), key=lambda n: (n.startswith("enP"), n))
    return ",".join(re.sub(r"np\d+$", "", "roce" + name[2:]) for name in halves)


def _warnings(chosen: Link, found: Sequence[Link]) -> list[str]:
    notes = []
    twin = _twin(chosen.name, found)
    if twin:
        mine = {_network(a) for a in chosen.addresses}
        if mine & {_network(a) for a in twin.addresses}:
            notes.append(f"{chosen.name} and {twin.name} are in one subnet; routing is ambiguous")
        if chosen.name.startswith("enP"):
            notes.append(f"{chosen.name} is the second half of a ConnectX port; its twin {twin.name} is the usual socket interface")
    if 0 < chosen.speed_mbit < 1000:
        notes.append(f"{chosen.name} runs at {chosen.speed_mbit} Mbit/s; check the cable")
    return notes


def variables(interface: str, address: str) -> dict[str, str]:
    """The environment of a node's Ray and vLLM processes. NCCL matches by prefix unless told otherwise (`=`); Gloo takes the exact name."""
    return {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface, "VLLM_HOST_IP": address}
