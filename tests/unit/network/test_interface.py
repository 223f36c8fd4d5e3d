# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of the interface between nodes. Links are as talosctl 1.14 prints them, cut to what is read."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.network import interface

NO_CARRIER = 4294967295


def link(name: str, *, up: bool = True, kind: str = "", kind_type: str = "ether", index: int = 1, state: str | None = None, **more: Any) -> dict[str, Any]:
    spec = {"index": index, "kind": kind, "type": kind_type, "linkState": up, "operationalState": state or ("up" if up else "down"), "mtu": 1500, **more}
    return {"metadata": {"id": name}, "spec": spec}


def address(name: str, text: str) -> dict[str, Any]:
    return {"metadata": {"id": f"{name}/{text}"}, "spec": {"address": text, "linkName": name}}


def route(dst: str, name: str, *, priority: int = 1024, gateway: str = "", table: str = "main") -> dict[str, Any]:
    return {"spec": {"dst": dst, "outLinkName": name, "priority": priority, "gateway": gateway, "family": "inet4", "table": table, "type": "unicast"}}


X86 = [
    link("cni0", kind="bridge", index=8),
    link("dummy0", kind="dummy", up=False, index=9),
    link("enp3s0", index=2, speedMbit=2500, driver="igc"),
    link("enp5s0", up=False, index=3, speedMbit=NO_CARRIER),
    link("flannel.1", kind="vxlan", state="unknown", index=10),
    link("lo", kind_type="loopback", state="unknown", index=1),
    link("veth1a2b3c4d", kind="veth", index=11),
]
X86_ADDRESSES = [address("enp3s0", "10.0.0.20/24"), address("lo", "127.0.0.1/8"), address("cni0", "10.244.0.1/24"), address("flannel.1", "10.244.0.0/32")]
SPARK = [
    link("enP2p1s0f0np0", index=5, driver="mlx5_core", speedMbit=200000),
    link("enP2p1s0f1np1", up=False, index=6),
    link("enP7s7", index=2, driver="r8169", speedMbit=10000),
    link("enp1s0f0np0", index=3, driver="mlx5_core", speedMbit=200000),
    link("enp1s0f1np1", up=False, index=4),
    link("lo", kind_type="loopback", state="unknown"),
    link("wlP9s9", up=False, index=7),
]
SPARK_ADDRESSES = [address("enP7s7", "10.0.0.10/24"), address("lo", "127.0.0.1/8")]


def choose(links: list[Any], addresses: list[Any], wanted: str, **more: Any) -> interface.Choice:
    return interface.choose(interface.links(links, addresses), node=more.pop("node", "x86-01"), address=wanted, **more)


@pytest.mark.parametrize(
    ("links", "addresses", "wanted", "name", "sort"),
    [
        pytest.param(X86, X86_ADDRESSES, "10.0.0.20", "enp3s0", "physical", id="x86"),
        pytest.param(SPARK, SPARK_ADDRESSES, "10.0.0.10", "enP7s7", "physical", id="spark"),
        pytest.param(
            [link("br0", kind="bridge"), link("eth0", masterIndex=1, slaveKind="bridge"), link("cni0", kind="bridge")],
            [address("br0", "10.99.101.9/24")], "10.99.101.9", "br0", "bridge", id="bridge"),
        pytest.param(
            [link("bond0", kind="bond"), link("eno1", masterIndex=1), link("eno2", masterIndex=1)],
            [address("bond0", "10.0.0.5/24")], "10.0.0.5", "bond0", "bond", id="bond"),
        pytest.param([link("eno1"), link("eno1.7", kind="vlan")], [address("eno1.7", "10.7.0.5/24")], "10.7.0.5", "eno1.7", "vlan", id="vlan"),
        pytest.param([link("eno1", state="unknown")], [address("eno1", "10.0.0.5/24")], "10.0.0.5", "eno1", "physical", id="driver-without-state"),
        pytest.param([link("eno1")], [address("eno1", "fd00::5/64")], "fd00::5", "eno1", "physical", id="ipv6"),
    ],
)  # fmt: skip
def test_the_link_that_owns_the_address(links: list[Any], addresses: list[Any], wanted: str, name: str, sort: str) -> None:
    found = choose(links, addresses, wanted)
    assert (found.interface, found.sort, found.address) == (name, sort, wanted)


def test_why_the_others_fell_out() -> None:
    links = [link("enp90s0np0"), link("enp220s0f0"), link("enp90s0v0"), link("ibs0", kind_type="infiniband"), link("cilium_host"), link("lo", kind_type="loopback")]
    found = choose(links, [address("enp90s0np0", "10.1.0.89/24"), address("cilium_host", "10.2.0.95/32")], "10.1.0.89")
    assert found.interface == "enp90s0np0"
    assert found.rejected["enp220s0f0"] == found.rejected["enp90s0v0"] == "no address"
    assert found.rejected["ibs0"].startswith("not ethernet")
    assert found.rejected["cilium_host"] == "container network"
    assert found.rejected["lo"] == "loopback"


@pytest.mark.parametrize(
    ("links", "addresses", "wanted", "message", "hint"),
    [
        pytest.param([link("eth0")], [address("eth0", "172.16.1.2/24")], "203.0.113.225",
                     r"203.0.113.225 is not on any link of this node \(172.16.1.2/24 on eth0\)", "motley_address", id="not-ours"),
        pytest.param([link("eno1", up=False)], [address("eno1", "10.0.0.5/24")], "10.0.0.5", "is on eno1, which can not be used: down", "cable", id="down"),
        pytest.param([link("eno1"), link("eno2")], [address("eno1", "10.0.0.5/24"), address("eno2", "10.0.0.5/24")], "10.0.0.5",
                     "on several links: eno1, eno2", "motley_interface", id="twice"),
        pytest.param(X86, X86_ADDRESSES, "10.244.0.1", "is on cni0, which can not be used: container network", "enp3s0", id="pod-network"),
        pytest.param(X86, X86_ADDRESSES, "no-address", "is no IP address", "motley_address", id="name"),
    ],
)  # fmt: skip
def test_doubt_is_refused(links: list[Any], addresses: list[Any], wanted: str, message: str, hint: str) -> None:
    with pytest.raises(MotleyError, match=message) as caught:
        choose(links, addresses, wanted)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("wanted", "message", "hint"),
    [
        ("eth0", r"x86-01 has no link named eth0 \(candidates: enp3s0\)", "set motley_interface for x86-01 to enp3s0"),
        ("enp5s0", "motley_interface enp5s0 can not be used: down", "to enp3s0"),
        ("lo", "can not be used: loopback", "to enp3s0"),
    ],
)
def test_the_operators_interface_is_checked(wanted: str, message: str, hint: str) -> None:
    with pytest.raises(MotleyError, match=message) as caught:
        choose(X86, X86_ADDRESSES, "10.0.0.20", interface=wanted)
    assert hint in caught.value.hint


def test_the_operators_interface_must_own_the_address() -> None:
    links, addresses = [link("eno1"), link("eno2")], [address("eno1", "10.0.0.5/24"), address("eno2", "10.1.0.5/24")]
    with pytest.raises(MotleyError, match="eno2 does not own the inter-node address 10.0.0.5: it is on eno1"):
        choose(links, addresses, "10.0.0.5", interface="eno2")
    assert choose(links, addresses, "10.1.0.5", interface="eno2").interface == "eno2"


def test_an_alias_is_turned_into_the_kernels_name() -> None:
    links = [link("enp0s2", alias="net0", altNames=["enx0200"])]
    for name in ("net0", "enx0200", "enp0s2"):
        assert choose(links, [address("enp0s2", "10.0.0.5/24")], "10.0.0.5", interface=name).interface == "enp0s2"


def test_connectx_twins() -> None:
    links = [link("enp1s0f0np0", up=False), link("enp1s0f1np1"), link("enP2p1s0f0np0", up=False), link("enP2p1s0f1np1"), link("enP7s7")]
    apart = [address("enp1s0f1np1", "192.168.100.1/24"), address("enP2p1s0f1np1", "192.168.101.1/24"), address("enP7s7", "10.0.0.10/24")]
    found = choose(links, apart, "192.168.100.1")
    assert (found.interface, found.rdma, found.warnings) == ("enp1s0f1np1", "rocep1s0f1,roceP2p1s0f1", ())
    together = [address("enp1s0f1np1", "192.168.100.1/24"), address("enP2p1s0f1np1", "192.168.100.3/24")]
    assert choose(links, together, "192.168.100.1").warnings == ("enp1s0f1np1 and enP2p1s0f1np1 are in one subnet; routing is ambiguous",)
    assert choose(links, apart, "10.0.0.10").rdma is None


ROUTES = [route("10.0.0.0/24", "enp3s0"), route("", "enp5s0", gateway="192.168.1.1"), route("10.0.0.0/16", "enp5s0", priority=0)]


@pytest.mark.parametrize(
    ("routes", "peer", "name"),
    [
        (ROUTES, "10.0.0.10", "enp3s0"),
        (ROUTES, "10.0.9.9", "enp5s0"),
        (ROUTES, "8.8.8.8", "enp5s0"),
        ([route("10.0.0.0/24", "a", priority=100), route("10.0.0.0/24", "b", priority=50)], "10.0.0.1", "b"),
        ([route("10.0.0.0/24", "a", table="local")], "10.0.0.1", ""),
        ([], "10.0.0.1", ""),
    ],
)
def test_the_link_of_a_route(routes: list[Any], peer: str, name: str) -> None:
    assert interface.route_link(routes, peer) == name


def test_traffic_that_leaves_elsewhere_is_refused() -> None:
    assert choose(X86, X86_ADDRESSES, "10.0.0.20", routes=ROUTES, peers=["10.0.0.10"]).interface == "enp3s0"
    with pytest.raises(MotleyError, match="leaves by enp5s0, not by enp3s0"):
        choose(X86, X86_ADDRESSES, "10.0.0.20", routes=ROUTES, peers=["10.0.0.10", "10.0.9.9"])


def test_speed_without_carrier_is_unknown_and_a_slow_link_is_named() -> None:
    assert {found.name: found.speed_mbit for found in interface.links(X86, [])}["enp5s0"] == 0
    slow = choose([link("eno1", speedMbit=100)], [address("eno1", "10.0.0.5/24")], "10.0.0.5")
    assert slow.warnings == ("eno1 runs at 100 Mbit/s; check the cable",)


def test_names_are_exact_for_nccl_and_plain_for_gloo() -> None:
    assert interface.variables("enp3s0", "10.0.0.20") == {"NCCL_SOCKET_IFNAME": "=enp3s0", "GLOO_SOCKET_IFNAME": "enp3s0", "VLLM_HOST_IP": "10.0.0.20"}
