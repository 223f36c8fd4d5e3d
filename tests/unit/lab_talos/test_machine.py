# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Machines and the client together: installation, bootstrap, configuration, upgrade, refusals."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from motley_lab import faults, record
from motley_lab.talos import images

from .conftest import Lab, Run

REFUSED = 'connection error: desc = "transport: Error while dialing: dial tcp {}:50000: connect: connection refused"'
MODULES = "machine: {kernel: {modules: [{name: nvidia}, {name: nvidia_uvm}, {name: nvidia_drm}, {name: nvidia_modeset}]}}"


def _files(ctl: Run, lab: Lab, schematics: tuple[str, str] = ("gpu", "nobti")) -> None:
    ctl("gen", "secrets", "-o", "secrets.yaml")
    for role, name, schematic in (("controlplane", "x86-01", schematics[0]), ("worker", "spark-01", schematics[1])):
        image = f"{lab.factory}/metal-installer/{schematic}:v1.14.1"
        host = json.dumps({"apiVersion": "v1alpha1", "kind": "HostnameConfig", "hostname": name, "auto": "off"})
        done = ctl("gen", "config", "home", f"https://{lab.x86}:6443", "--with-secrets", "secrets.yaml", "--install-image", image,
                   "--install-disk", "/dev/nvme0n1", "--config-patch", MODULES, "--config-patch", host, "-t", role, "-o", f"{name}.yaml")  # fmt: skip
        assert done.rc == 0, done.err
    ctl("gen", "config", "home", f"https://{lab.x86}:6443", "--with-secrets", "secrets.yaml", "-t", "talosconfig", "-o", "tc")


def _stage(ctl: Run, node: str) -> str:
    return ctl("--talosconfig", "tc", "-e", node, "-n", node, "get", "machinestatus", "-o", "jsonpath={.spec.stage} {.spec.status.ready}").out.strip()


def _until(ctl: Run, node: str, wanted: str, seconds: float = 8) -> None:
    end = time.monotonic() + seconds
    while (seen := _stage(ctl, node)) != wanted:
        assert time.monotonic() < end, f"{node}: {seen!r}, not {wanted!r}"
        time.sleep(0.05)


def _cluster(ctl: Run, lab: Lab) -> None:
    if not Path("tc").exists():
        _files(ctl, lab)
    assert ctl("-n", lab.x86, "apply-config", "-i", "-f", "x86-01.yaml") == (0, "", "Applied configuration without a reboot\n")
    assert ctl("-n", lab.spark, "apply-config", "-i", "-f", "spark-01.yaml").rc == 0
    _until(ctl, lab.x86, "booting false")
    _until(ctl, lab.spark, "running true")
    assert ctl("--talosconfig", "tc", "-e", lab.x86, "-n", lab.x86, "bootstrap") == (0, "", "")
    _until(ctl, lab.x86, "running true")


def test_life_of_a_cluster(ctl: Run, lab: Lab, tmp_path: Path) -> None:
    before = ctl("-n", lab.spark, "get", "discoveredvolumes", "-i", "-o", "jsonpath={.spec.name}").out.split()
    assert before == ["gpt", "ext4"]
    assert ctl("-n", lab.spark, "get", "systemdisk", "-i", "-o", "json") == (0, "", "")
    _cluster(ctl, lab)
    talos = ("--talosconfig", "tc", "-e", lab.x86, "-n", lab.spark)
    labels = ctl(*talos, "get", "dv", "-o", "jsonpath={.spec.partitionLabel}").out.split()
    assert labels == ["EFI", "META", "STATE", "EPHEMERAL"]
    assert ctl(*talos, "read", "/proc/cmdline").out.endswith("arm64.nobti\n")
    names = ctl(*talos, "get", "extensions", "-o", "jsonpath={.spec.metadata.name}").out.split()
    assert names == ["nonfree-kmod-nvidia-lts", "nvidia-container-toolkit-lts", "schematic", "modules.dep"]
    again = ctl("--talosconfig", "tc", "-e", lab.x86, "-n", lab.x86, "bootstrap")
    assert again.err == f"error executing bootstrap: 1 error occurred:\n\t* {lab.x86}: rpc error: code = AlreadyExists desc = " \
        "etcd data directory is not empty\n\n\n"  # fmt: skip
    dry = ctl(*talos, "apply-config", "-f", "spark-01.yaml", "--dry-run")
    assert dry.err == "Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).\nConfig diff:\n\nNo changes.\n"
    assert ctl("--talosconfig", "tc", "-e", lab.x86, "-n", lab.x86, "kubeconfig", "--merge=false", "--force", "k").rc == 0
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600
    found = [(entry["method"], entry["path"], entry["dry_run"]) for entry in record.read(lab.directory) if entry["path"] != "/get"]
    assert ("POST", "/apply", True) in found and ("POST", "/bootstrap", False) in found and ("GET", "/read", False) in found


def test_an_upgrade_goes_to_the_other_slot_and_may_fall_back(ctl: Run, lab: Lab) -> None:
    _cluster(ctl, lab)
    (lab.directory / "nodes" / "spark-01" / "var" / "model").write_text("kept")
    talos = ("--talosconfig", "tc", "-e", lab.spark, "-n", lab.spark)

    def upgrade(name: str) -> None:
        done = ctl(*talos, "upgrade", "-i", f"{lab.factory}/metal-installer/{name}:v1.14.1", "--drain=false", "--timeout", "8s")
        assert done.rc == 0, done.err
        assert f"{lab.spark}: upgrade completed\n" in done.err and '": post check passed\n' in done.err

    def schematic() -> str:
        return ctl(*talos, "get", "extensions", "-o", "jsonpath={.spec.metadata.version}").out.split()[-2]

    upgrade("plain")
    assert schematic() == "plain"
    assert ctl(*talos, "rollback").rc == 0
    time.sleep(0.5)
    _until(ctl, lab.spark, "running true")
    assert schematic() == "nobti"
    faults.add(lab.directory, "upgrade-falls-back", node="spark-01")
    upgrade("plain")
    assert schematic() == "nobti"
    faults.add(lab.directory, "install-fails", node="spark-01")
    failed = ctl(*talos, "upgrade", "-i", f"{lab.factory}/metal-installer/plain:v1.14.1", "--drain=false")
    assert failed.rc == 1 and failed.err.endswith("upgrade failed with exit code 1\n")
    missing = ctl(*talos, "upgrade", "-i", f"{lab.factory}/metal-installer/none:v1.14.1", "--drain=false")
    assert missing.rc == 1 and "code = NotFound desc = error pulling image" in missing.err
    assert (lab.directory / "nodes" / "spark-01" / "var" / "model").read_text() == "kept"
    assert ctl(*talos, "reset", "--graceful=false", "--reboot", "--wait=false").rc == 0
    end = time.monotonic() + 5
    while "maintenance" not in ctl("-n", lab.spark, "get", "machinestatus", "-i").out:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not (lab.directory / "nodes" / "spark-01" / "var" / "model").exists()


def test_configuration_modes(ctl: Run, lab: Lab) -> None:
    _cluster(ctl, lab)
    talos = ("--talosconfig", "tc", "-e", lab.spark, "-n", lab.spark)
    files = 'machine: {files: [{path: /var/x, content: y, op: create, permissions: 0o644}]}'
    refused = ctl(*talos, "apply-config", "-f", "spark-01.yaml", "-p", files, "-m", "no-reboot")
    assert refused.rc == 1 and "this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n" in refused.err
    label = ("-p", '{"apiVersion":"v1alpha1","kind":"KubeNodeConfig","labels":{"a":"b"}}')
    staged = ctl(*talos, "apply-config", "-f", "spark-01.yaml", *label, "-m", "staged")
    assert staged.err == "Staged configuration to be applied after the next reboot\n"
    assert "No changes." in ctl(*talos, "apply-config", "-f", "spark-01.yaml", "--dry-run").err
    tried = ctl(*talos, "apply-config", "-f", "spark-01.yaml", *label, "-m", "try", "--timeout", "1s")
    assert "will be automatically reverted back in 1s" in tried.err
    assert "-    a: b" not in ctl(*talos, "apply-config", "-f", "spark-01.yaml", *label, "--dry-run").err
    time.sleep(1.3)
    assert "No changes." in ctl(*talos, "apply-config", "-f", "spark-01.yaml", "--dry-run").err
    assert ctl(*talos, "patch", "mc", "-p", "machine: {kernel: {args: [x]}}").err.startswith("error decoding document /v1alpha1/ (line 1): unknown")
    assert ctl(*talos, "patch", "mc", *label).err.startswith("patched MachineConfigs.config.talos.dev/v1alpha1 at the node")
    assert ctl(*talos, "patch", "mc", *label).err == "Apply was skipped: no changes detected.\n"


def test_refusals(ctl: Run, lab: Lab) -> None:
    dead = "127.0.77.99"
    _files(ctl, lab)
    unknown = "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    early = ctl("--talosconfig", "tc", "-e", lab.x86, "-n", lab.x86, "get", "machinestatus")
    assert early == (1, "", f'rpc error: code = Unavailable desc = connection error: desc = "transport: authentication handshake failed: {unknown}"\n')
    assert ctl("-n", lab.x86, "reset", "--insecure", version="1.13").err == "error executing reset: rpc error: code = PermissionDenied desc = not authorized\n"
    _cluster(ctl, lab)
    talos = ("--talosconfig", "tc", "-e", lab.x86)
    both = ctl(*talos, "-n", f"{lab.x86},{dead}", "version")
    assert both.rc == 0 and both.err == f"WARNING: 1 error occurred:\n\t* {dead}: rpc error: code = Unavailable desc = {REFUSED.format(dead)}\n\n\n"
    first = ctl(*talos, "-n", f"{dead},{lab.x86}", "get", "hostname")
    assert first == (1, "", f"rpc error: code = Unavailable desc = {REFUSED.format(dead)}\n")
    second = ctl(*talos, "-n", f"{lab.x86},{dead}", "get", "hostname")
    assert second.rc == 1 and "x86-01" in second.out and second.err.startswith("1 error occurred:\n\t* rpc error")
    worker = ctl("--talosconfig", "tc", "-e", lab.spark, "-n", lab.x86, "version")
    assert worker.err == "error getting version: rpc error: code = PermissionDenied desc = no request forwarding\n"
    seen = {ctl("-n", lab.spark, "get", "machinestatus", "-i").err.split("desc = ", 1)[1].split("->")[0][:9] for dummy in range(20)}
    assert {"write tcp", "connectio"} == seen
    assert ctl(*talos, "-n", lab.x86, "get", "ms").err.startswith('rpc error: code = InvalidArgument desc = resource type "ms" is ambiguous')
    assert ctl("--talosconfig", "nosuch", "-e", dead, "-n", dead, "get", "links").err.endswith("talos config file is empty\n")
    assert Path("nosuch").read_text() == 'context: ""\ncontexts: {}\n'


def _slot(version: str, *names: str, args: tuple[str, ...] = ()) -> dict[str, object]:
    return {"version": version, "args": list(args), "extensions": [{"name": f"siderolabs/{name}", "tag": "580.1-x"} for name in names]}


KMOD, TOOLKIT, OPEN = "nonfree-kmod-nvidia-lts", "nvidia-container-toolkit-lts", "nvidia-open-gpu-kernel-modules-lts"


@pytest.mark.parametrize(
    ("slot", "accelerator", "requested", "modules", "cuda"),
    [
        (_slot("v1.14.1", KMOD, TOOLKIT), "rtx4090", images.NVIDIA, True, True),
        (_slot("v1.14.1", OPEN, TOOLKIT), "rtx4090", images.NVIDIA, True, True),
        (_slot("v1.14.1", KMOD, TOOLKIT), "rtx4090", (), False, "kernel modules not loaded"),
        (_slot("v1.14.1", KMOD), "rtx4090", images.NVIDIA, True, "no container toolkit"),
        (_slot("v1.14.1", KMOD, TOOLKIT.replace("lts", "production")), "rtx4090", images.NVIDIA, True, "driver and toolkit of different branches"),
        (_slot("v1.14.1", KMOD, TOOLKIT), "gb10", images.NVIDIA, False, "BTI"),
        (_slot("v1.12.11", KMOD, TOOLKIT), "gb10", images.NVIDIA, True, "cuInit returned 3"),
        (_slot("v1.13.9", KMOD, TOOLKIT, args=("arm64.nobti",)), "gb10", images.NVIDIA, True, "cuInit returned 3"),
        (_slot("v1.14.1", OPEN, TOOLKIT, args=("arm64.nobti",)), "gb10", images.NVIDIA, False, "stall"),
        (_slot("v1.14.1", KMOD, TOOLKIT, args=("arm64.nobti",)), "gb10", images.NVIDIA, True, True),
        (_slot("v1.14.1"), "rtx4090", images.NVIDIA, False, "no driver"),
    ],
)  # fmt: skip
def test_what_a_gpu_needs(slot: dict[str, object], accelerator: str, requested: tuple[str, ...], modules: bool, cuda: object) -> None:
    found = images.gpu(slot, list(requested), [{"accelerator": accelerator}])
    assert found["modules"] is modules
    assert found["cuda"] is True if cuda is True else str(cuda) in found["cuda"]
