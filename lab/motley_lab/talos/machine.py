# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated Talos machine: `python -m motley_lab.talos.machine --lab LAB --node NODE`.

It boots, installs, runs and reboots as Talos does, keeps its state in `LAB/nodes/NODE/machine.json`, answers the machine
API on port 50000 and runs the kubelet and, on the control plane, the Kubernetes API as its children.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import http.client
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

from motley_lab import faults
from motley_lab.talos import api, images, pki, resources, transport
from motley_lab.talos import config as configs
from motley_lab.talos.validate import Errors, validate

DOWN_S, BOOT_S, INSTALL_S, GRACE_S, TICK_S = 1.0, 0.6, 0.8, 0.6, 0.2
# Changes below these keys of the classic document need a reboot.
REBOOT_KEYS = ("type", "token", "files", "env", "disks", "udev", "baseRuntimeSpecOverrides", "systemDiskEncryption", "controlPlane")
LAYOUT = (("EFI", 2200, "vfat"), ("META", 1, "talosmeta"), ("STATE", 105, "xfs"), ("EPHEMERAL", 0, "xfs"))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Machine:
    """State and sequences of one machine; everything that starts a process runs in the main thread."""

    def __init__(self, lab: Path, name: str, *, kubernetes: bool = True) -> None:
        self.lab, self.name, self.kubernetes = lab.resolve(), name, kubernetes
        self.facts = json.loads((lab / "lab.json").read_text(encoding="utf-8"))
        node = self.facts["nodes"][name]
        self.address: str = node["address"]
        self.hardware: dict[str, Any] = node["hardware"]
        self.arch: str = node["arch"]
        self.dir = self.lab / "nodes" / name
        self.var, self.secrets = self.dir / "var", self.dir / "run" / "pki"
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()  # a signal handler may put
        self.lock = threading.RLock()
        self.applying = threading.Lock()
        self.installing = threading.Lock()
        self.kmsg: list[tuple[float, str]] = []
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.listeners: list[api.Listener] = []
        self.rebooting = False
        self.node_ready = False
        self.revert: tuple[float, str] | None = None
        self._parsed: tuple[str, configs.Config] | None = None
        self._next_api = self._next_start = self._next_look = 0.0
        self.dir.mkdir(parents=True, exist_ok=True)
        self.state: dict[str, Any] = {
            "stage": "booting", "config": None, "staged": None, "installed": False, "slots": {}, "active": None, "next": None,
            "bootstrapped": False, "booted_at": time.time(), "system_disk": None, "disks": {}, "config_version": 1,
        }  # fmt: skip
        with contextlib.suppress(FileNotFoundError):
            self.state |= json.loads((self.dir / "machine.json").read_text(encoding="utf-8"))

    # -- state -------------------------------------------------------------------------------------------------------

    def save(self, **changes: Any) -> None:
        with self.lock:
            self.state.update(changes)
            fresh = self.dir / "machine.json.new"
            fresh.touch(mode=0o600)
            fresh.write_text(json.dumps(self.state), encoding="utf-8")
            fresh.replace(self.dir / "machine.json")

    def stage(self, name: str) -> None:
        if self.state["stage"] != name:
            version = self.state.get("stage_version", 0) + 1
            self.save(stage=name, stage_version=version, stage_since=time.time())

    def log(self, text: str) -> None:
        self.kmsg.append((time.time(), text))
        sys.stderr.write(f"{self.name}: {text}\n")
        sys.stderr.flush()

    def fault(self, name: str) -> dict[str, Any] | None:
        return faults.active(self.lab, name, self.name)

    def running(self) -> dict[str, Any]:
        """The image that the machine was booted from: a slot, or the medium."""
        if self.state["installed"] and self.state["active"]:
            return dict(self.state["slots"][self.state["active"]])
        return images.vanilla(self.facts["talos_version"])

    def contract_of_release(self) -> str:
        return ".".join(str(part) for part in images.release(self.running()["version"])[:2])

    def contract(self) -> str:
        return "1.13" if images.release(self.running()["version"])[:2] <= (1, 13) else "1.14"

    @property
    def config(self) -> configs.Config | None:
        text = self.state["config"]
        if not text:
            return None
        if self._parsed is None or self._parsed[0] != text:
            self._parsed = (text, configs.load(text, contract=self.contract()))
        return self._parsed[1]

    @property
    def role(self) -> str:
        return str(self.config.get("machine.type")) if self.config else ""

    @property
    def hostname(self) -> str:
        if self.config:
            name = (self.config.find("HostnameConfig") or {}).get("hostname") or self.config.get("machine.network.hostname")
            if name:
                return str(name)
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        return f"talos-{digest[:3]}-{digest[3:6]}"

    def endpoint(self) -> urllib.parse.SplitResult:
        assert self.config is not None
        url = self.config.get("cluster.controlPlane.endpoint") or (self.config.find("KubeClusterConfig") or {}).get("endpoint")
        return urllib.parse.urlsplit(str(url))

    def cluster_name(self) -> str:
        assert self.config is not None
        return str(self.config.get("cluster.clusterName") or (self.config.find("KubeClusterConfig") or {}).get("clusterName") or "kubernetes")

    def cmdline(self) -> str:
        return " ".join([images.BASE_CMDLINE, *self.running()["args"]])

    def partitions(self, disk: dict[str, Any]) -> list[dict[str, Any]]:
        found = self.state["disks"].get(disk["path"])
        return list(disk.get("partitions") or []) if found is None else found

    def mirrors(self) -> dict[str, list[str]]:
        if self.config is None:
            return {}
        found = {host: list((item or {}).get("endpoints") or []) for host, item in (self.config.get("machine.registries.mirrors") or {}).items()}
        for item in self.config.all("RegistryMirrorConfig"):
            found[item["name"]] = [entry["url"] for entry in item.get("endpoints") or []]
        return found

    # -- kernel and GPU ----------------------------------------------------------------------------------------------

    def requested_modules(self) -> list[str]:
        if self.config is None:
            return []
        listed = [item["name"] for item in self.config.get("machine.kernel.modules") or []]
        return listed + [str(item["name"]) for item in self.config.all("KernelModuleConfig")]

    def gpu(self) -> dict[str, Any]:
        return images.gpu(self.running(), self.requested_modules(), self.hardware["devices"])

    def loaded_modules(self) -> list[str]:
        built_in = {link["driver"] for link in self.hardware["links"]}
        others = [name for name in self.requested_modules() if name not in images.NVIDIA]
        return sorted({*built_in, *others, *self.gpu()["loaded"]})

    # -- certificates ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        extra = self.config.get("machine.certSANs") if self.config else None
        return [self.address, self.hostname, "127.0.0.1", *(extra or [])]

    def _trustd(self, kind: str) -> pki.Pair | None:
        """A certificate for a worker, signed by the control plane; None while that does not answer."""
        assert self.config is not None
        host = self.endpoint().hostname or ""
        body = {"token": self.config.get("machine.token"), "kind": kind, "names": self.names(), "hostname": self.hostname}
        try:
            tls = transport.context(pki.Pair.decoded(self.config.get("machine.ca")).crt)
            answer = transport.call(host, "sign", body, tls=tls, port=transport.PORT + 1, timeout=5)
        except transport.RpcError:
            return None
        return pki.Pair(**answer) if "crt" in answer else None

    def sign(self, kind: str, names: list[str], hostname: str) -> pki.Pair:
        """What trustd signs on the control plane: a machine's server certificate or a kubelet's client certificate."""
        assert self.config is not None
        if kind == "kubelet":
            return pki.issue(self.kube_ca(), common_name=f"system:node:{hostname}", organizations=["system:nodes"])
        return pki.issue(pki.Pair.decoded(self.config.get("machine.ca")), common_name=hostname, names=names)

    def certificate(self, kind: str) -> pki.Pair | None:
        control = self.role in ("controlplane", "init")
        return self.sign(kind, self.names(), self.hostname) if control else self._trustd(kind)

    def kube_ca(self) -> pki.Pair:
        assert self.config is not None
        issuing = (self.config.find("KubeAPIServerCAConfig") or {}).get("issuingCA")
        return pki.Pair(issuing["cert"], issuing["key"]) if issuing else pki.Pair.decoded(self.config.get("cluster.ca"))

    def kube_ca_certificate(self) -> str:
        assert self.config is not None
        document = self.config.find("KubeAPIServerCAConfig") or {}
        accepted = document.get("acceptedCAs") or []
        return str(accepted[0]) if accepted else self.kube_ca().crt

    def kubeconfig(self, pair: pki.Pair, user: str, server: str | None = None) -> str:
        cluster, name = self.cluster_name(), f"{user}@{self.cluster_name()}"
        entry = {"certificate-authority-data": pki.b64(self.kube_ca_certificate()), "server": server or self.endpoint().geturl()}
        login = {"client-certificate-data": pki.b64(pair.crt), "client-key-data": pki.b64(pair.key)}
        lines = [
            "apiVersion: v1", "clusters:", "- cluster:", *(f"    {key}: {value}" for key, value in entry.items()), f"  name: {cluster}",
            "contexts:", "- context:", f"    cluster: {cluster}", "    namespace: default", f"    user: {name}", f"  name: {name}",
            f"current-context: {name}", "kind: Config", "users:", f"- name: {name}", "  user:",
            *(f"    {key}: {value}" for key, value in login.items()),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def admin_kubeconfig(self) -> str:
        return self.kubeconfig(pki.issue(self.kube_ca(), common_name="admin", organizations=["system:masters"]), "admin")

    # -- life of the machine -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Boot again and again until the process is ended."""
        while True:
            ended = self._one_boot()
            self._stop_children(force=ended == "force")
            self._stop_listeners()
            if ended == "stop":
                return
            if ended == "off":
                self.stage("shutting down")
                while self.events.get() != "stop":
                    pass
                return
            time.sleep(DOWN_S)

    def _one_boot(self) -> str:
        self.rebooting = self.node_ready = False
        self._next_api = self._next_start = self._next_look = 0.0
        self.revert = None
        self.kmsg = []
        staged = self.state.get("staged")
        if staged:
            self.save(config=staged, staged=None, config_version=self.state["config_version"] + 1)
        self._choose_slot()
        self.save(stage="booting", stage_version=1, booted_at=time.time(), stage_since=time.time())
        self.log(f"Linux version {resources.kernel(self)} (@buildkitsandbox) #1 SMP")
        self.log(f"Command line: {self.cmdline()}")
        slow = self.fault("slow-boot")
        wait = BOOT_S + (float(slow.get("seconds", 30)) if slow else 0)
        if (ended := self._sleep(wait)) is not None:
            return ended
        if self.config is None or not self.state["installed"]:
            return self._maintenance()
        self._load_modules()
        while True:
            self._tick()
            if (ended := self._sleep(TICK_S)) is not None:
                return ended

    def _sleep(self, seconds: float) -> str | None:
        """Wait for an event that ends this boot; other events are for maintenance only."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                event = self.events.get(timeout=left)
                if event in ("reboot", "force", "off", "stop"):
                    return event
        return None

    def _choose_slot(self) -> None:
        wanted = self.state.get("next")
        if not wanted:
            return
        if wanted != self.state["active"] and self.fault("upgrade-falls-back"):
            self.log(f"boot of slot {wanted} failed, falling back to slot {self.state['active']}")
            self.save(next=None)
        else:
            self.save(active=wanted, next=None)

    def _maintenance(self) -> str:
        self.save(config=None, staged=None, stage="maintenance", stage_version=1)
        pair = pki.issue(None, common_name="maintenance-service.talos.dev", names=[self.address])
        self._listen(pair, ca=None)
        self.log("[talos] this machine is reachable at: " + self.address)
        event = self.events.get()
        if event != "configured":
            return event
        time.sleep(0.3)  # the old listener still answers, and refuses
        self._stop_listeners()
        self.stage("installing")
        certificate = self.certificate("machine") if self.role in ("controlplane", "init") else None
        if certificate:
            self._listen(certificate, ca=self._machine_ca())
        time.sleep(INSTALL_S)
        try:
            self._install()
        except transport.RpcError as error:
            self.log(f"[talos] install sequence failed: {error.desc}")
            self.save(config=None)
        return "reboot"

    def _machine_ca(self) -> str:
        assert self.config is not None
        return pki.Pair.decoded(self.config.get("machine.ca")).crt

    def _listen(self, pair: pki.Pair, *, ca: str | None) -> None:
        tls = transport.server_context(self.secrets, ca=ca, crt=pair.crt, key=pair.key)
        self.listeners.append(api.Listener(self, (self.address, transport.PORT), tls, api.Rpc))
        if ca and self.role in ("controlplane", "init"):
            open_tls = transport.server_context(self.secrets / "trustd", ca=None, crt=pair.crt, key=pair.key)
            self.listeners.append(api.Listener(self, (self.address, transport.PORT + 1), open_tls, api.Trustd))

    def _stop_listeners(self) -> None:
        for listener in self.listeners:
            listener.close()
        self.listeners = []

    def _tick(self) -> None:
        """One step of a booted machine."""
        if not self.listeners:
            pair = self.certificate("machine")
            if pair is None:
                return
            self._listen(pair, ca=self._machine_ca())
        if self.revert and time.monotonic() > self.revert[0]:
            self.save(config=self.revert[1])
            self.revert = None
        for name, child in list(self.children.items()):
            if child.poll() is not None:
                self.log(f"[talos] service {name} ended with {child.returncode}")
                del self.children[name]
        if self.state.get("bootstrapped") and "kube-apiserver" not in self.children and time.monotonic() > self._next_api:
            self._next_api = time.monotonic() + 1
            self._start_api()
        if "kubelet" not in self.children and time.monotonic() > self._next_start:
            self._next_start = time.monotonic() + 2 * TICK_S
            if self._api_answers():
                self._start_kubelet()
        if self.kubelet_runs() and self.state["stage"] == "booting":
            self.stage("running")
        if self.kubelet_runs() and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + (5.0 if self.node_ready else 2 * TICK_S)
            self.node_ready = self._node_is_ready()

    def readiness(self) -> tuple[bool, list[tuple[str, str]]]:
        if self.state["stage"] == "maintenance":
            return True, []
        if self.state["stage"] != "running":
            return False, []
        unmet: list[tuple[str, str]] = []
        bad = next((row[0] for row in self.services() if row[1] == "Failed"), None)
        if bad:
            unmet.append(("services", f"{bad} not healthy"))
        if not self.node_ready:
            unmet.append(("nodeReady", f'node "{self.hostname}" status is not available yet'))
        return not unmet, unmet

    # -- installation ------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        assert self.config is not None
        document = self.config.find("UnattendedInstallConfig")
        if document:
            image = (document.get("installer") or {}).get("image") or ""
            selector = ((document.get("provisioning") or {}).get("diskSelector") or {}).get("match", "")
            disk = self._selected(selector)
        else:
            image, disk = self.config.get("machine.install.image") or "", self._chosen(self.config.get("machine.install") or {})
        if disk is None:
            raise transport.RpcError("Unknown", "failed to find the installation disk")
        slot = images.pull(image, self.mirrors()) if image else images.vanilla(self.running()["version"])
        if fault := self.fault("install-fails"):
            raise transport.RpcError("Unknown", str(fault.get("text") or "failed to partition the disk: device or resource busy"))
        self._wipe_ephemeral()
        left = disk["size"] - sum(size for _, size, _ in LAYOUT) * 1_000_000
        parts = [{"partition_label": name, "size": size * 1_000_000 or left, "filesystem": kind} for name, size, kind in LAYOUT]
        self.save(installed=True, slots={"A": slot}, active="A", next=None, system_disk=disk["path"],
                  disks={**self.state["disks"], disk["path"]: parts})  # fmt: skip
        self.log(f"[talos] installed {image or 'the booted image'} on {disk['path']}")

    def _chosen(self, install: dict[str, Any]) -> dict[str, Any] | None:
        selector = install.get("diskSelector")
        if not selector:
            return next((disk for disk in self.hardware["disks"] if disk["path"] == install.get("disk")), None)
        kind = selector.get("type")
        fits = [disk for disk in self.hardware["disks"] if not kind or (kind == "nvme") == ("nvme" in disk["path"])]
        model = str(selector.get("model") or "").rstrip("*")
        return next((disk for disk in fits if str(disk.get("model", "")).startswith(model)), None)

    def _selected(self, expression: str) -> dict[str, Any] | None:
        """The disk of a selector: comparisons of path, model and transport are understood."""
        for disk in self.hardware["disks"]:
            known = {"dev_path": disk["path"], "model": disk.get("model", ""), "transport": "nvme" if "nvme" in disk["path"] else "sata"}
            terms = [term.strip() for term in expression.split("&&")]
            if all(any(term == f'disk.{key} == "{value}"' for key, value in known.items()) for term in terms):
                return dict(disk)
        return None

    def _wipe_ephemeral(self) -> None:
        shutil.rmtree(self.var, ignore_errors=True)
        (self.dir / "etcd.json").unlink(missing_ok=True)
        self.var.mkdir(parents=True, exist_ok=True)

    def upgrade(self, slot: dict[str, Any]) -> list[str]:
        """Install an image into the other slot; the lines that the installer writes, the last is its exit code."""
        if not self.installing.acquire(blocking=False):
            raise transport.RpcError("FailedPrecondition", "another installation/upgrade is already in progress")
        try:
            time.sleep(INSTALL_S)
            now = time.strftime("%Y/%m/%d %H:%M:%S")
            head = [f"{now} running Talos installer {slot['version']}", f"{now} running pre-flight checks"]
            if fault := self.fault("install-fails"):
                return [*head, f"Error: pre-flight checks failed: {fault.get('text') or 'unsupported upgrade'}", "Exit code: 1"]
            other = "B" if self.state["active"] == "A" else "A"
            self.save(slots={**self.state["slots"], other: slot}, next=other)
            rest = ["all pre-flight checks successful", f"installation of {slot['version']} complete"]
            return [*head, f"{now} host Talos version: {self.running()['version']}", *(f"{now} {line}" for line in rest), "Exit code: 0"]
        finally:
            self.installing.release()

    def reset(self, labels: list[str], *, reboot: bool) -> None:
        self.stage("resetting")
        self._stop_children(force=False)
        if not labels or "EPHEMERAL" in labels:
            self._wipe_ephemeral()
            self.save(bootstrapped=False)
        if not labels or "STATE" in labels:
            self.save(config=None, staged=None)
        if not labels:
            path = self.state["system_disk"]
            self.save(installed=False, slots={}, active=None, next=None, system_disk=None, disks={**self.state["disks"], path: []})
        self.rebooting = True
        self.events.put("reboot" if reboot else "off")

    def reboot(self, *, force: bool = False) -> None:
        self.rebooting = True
        self.stage("rebooting")
        threading.Timer(GRACE_S, self.events.put, ["force" if force else "reboot"]).start()

    # -- configuration -----------------------------------------------------------------------------------------------

    def apply(self, text: str, mode: str, *, dry_run: bool, timeout: float) -> str:
        """Apply a configuration and return the text for the user."""
        if not self.applying.acquire(blocking=False):
            raise transport.RpcError("FailedPrecondition", "another apply configuration is already in progress")
        try:
            return self._apply(text, mode, dry_run=dry_run, timeout=timeout)
        finally:
            self.applying.release()

    def _apply(self, text: str, mode: str, *, dry_run: bool, timeout: float) -> str:
        if self.rebooting:
            late = "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot"
            raise transport.RpcError("FailedPrecondition", late)
        open_ = self.state["stage"] == "maintenance"
        try:
            fresh = configs.load(text, contract=self.contract())
            if fresh.v1alpha1 is not None or open_:
                validate(fresh, "metal", installed=not open_)
        except (configs.ConfigError, Errors) as error:
            raise transport.RpcError("InvalidArgument", str(error)) from None
        if fresh.v1alpha1 is None and not open_:
            wrong = "the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?"
            raise transport.RpcError("InvalidArgument", wrong)
        before, after = self.state["config"] or "", fresh.text()
        difference = configs.diff(before, after)
        reason = ""
        if not open_ and self._needs_reboot(fresh):
            reason = f"this config change can't be applied in immediate mode\ndiff:\n{difference}"
            if mode in ("no-reboot", "try"):
                raise transport.RpcError("InvalidArgument", reason)
        if mode == "auto":
            mode = "reboot" if reason else "no-reboot"
        elif open_ and mode == "reboot":
            mode = "no-reboot"
        words = {"reboot": "Applied configuration with a reboot", "staged": "Staged configuration to be applied after the next reboot"}
        done = words.get(mode, "Applied configuration without a reboot")
        if dry_run:
            return f"Dry run summary:\n{done} (skipped in dry-run).\nConfig diff:\n\n{difference or 'No changes.'}"
        self._take(fresh, after, mode, before, timeout)
        if mode == "try":
            return f"{done}\nThe config is applied in 'try' mode and will be automatically reverted back in {timeout:g}s"
        return f"{done}: {reason}" if reason and mode == "reboot" else done

    def _needs_reboot(self, fresh: configs.Config) -> bool:
        return self.config is not None and any(
            (self.config.get(f"machine.{key}") or None) != (fresh.get(f"machine.{key}") or None) for key in REBOOT_KEYS
        )

    def _take(self, fresh: configs.Config, text: str, mode: str, before: str, timeout: float) -> None:
        if self.state["stage"] == "maintenance":
            if fresh.v1alpha1 is not None:
                self.save(config=text)
                self.events.put("configured")
            return
        if mode == "staged":
            self.save(staged=text)
            return
        if mode == "reboot":
            self.save(staged=text)
            self.reboot()
            return
        self.save(config=text, staged=None, config_version=self.state["config_version"] + (text != before))
        if mode == "try":
            self.revert = (time.monotonic() + timeout, before)
        self._load_modules()
        if self.kubelet_runs():
            self._write_facts()

    def _load_modules(self) -> None:
        found = self.gpu()
        if found["problem"] and "nvidia" in self.requested_modules():
            self.log(found["problem"])
        for name in self.requested_modules():
            if name in images.NVIDIA and name not in found["loaded"]:
                self.log(f"[talos] error loading module {name}: {'module not found' if not found['driver'] else 'no such device'}")
        if found["loaded"]:
            self.log(f"NVRM: loading NVIDIA UNIX {'aarch64' if self.arch == 'arm64' else 'x86_64'} Kernel Module  {found['driver']}")

    # -- Kubernetes --------------------------------------------------------------------------------------------------

    def kubelet_runs(self) -> bool:
        return "kubelet" in self.children or (not self.kubernetes and self.state["stage"] in ("booting", "running") and self._may_run())

    def _may_run(self) -> bool:
        return self.role == "worker" or bool(self.state["bootstrapped"])

    def _api_answers(self) -> bool:
        if not self.kubernetes:
            return False
        url = self.endpoint()
        try:
            socket.create_connection((url.hostname or "", url.port or 6443), timeout=1).close()
        except OSError:
            return False
        return True

    def _node_is_ready(self) -> bool:
        if not self.kubernetes:
            return True
        url = self.endpoint()
        try:
            pair = (self.secrets / "kubelet.pem").read_text(encoding="ascii")
            tls = transport.context(self.kube_ca_certificate(), pair)
            link = http.client.HTTPSConnection(url.hostname or "", url.port or 6443, timeout=3, context=tls)
            link.request("GET", f"/api/v1/nodes/{self.hostname}")
            node = json.loads(link.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return False
        if node.get("kind") != "Node":  # not registered yet
            return False
        conditions = (node.get("status") or {}).get("conditions") or []
        return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)

    def _start_api(self) -> None:
        if not self.kubernetes:
            return
        assert self.config is not None
        extra = (self.config.get("cluster.apiServer.certSANs") or []) + ((self.config.find("KubeAPIServerConfig") or {}).get("certExtraSANs") or [])
        names = [self.endpoint().hostname or self.address, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1", "localhost"]
        pair = pki.issue(self.kube_ca(), common_name="kube-apiserver", names=[*names, *self.names(), *extra])
        folder = self.secrets / "kube"
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in (("ca.crt", self.kube_ca().crt), ("apiserver.crt", pair.crt), ("apiserver.key", pair.key)):
            (folder / file).touch(mode=0o600)
            (folder / file).write_text(text, encoding="ascii")
        port = str(self.endpoint().port or 6443)
        self._spawn("kube-apiserver", "motley_lab.kube.server", "--port", port, "--pki", str(folder))

    def _start_kubelet(self) -> None:
        pair = self.certificate("kubelet")
        if pair is None:
            return
        self.secrets.mkdir(parents=True, exist_ok=True)
        file = self.dir / "run" / "kubelet.kubeconfig"
        for path, text in ((file, self.kubeconfig(pair, f"system:node:{self.hostname}")), (self.secrets / "kubelet.pem", pair.crt + pair.key)):
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
        self._write_facts()
        self._spawn("kubelet", "motley_lab.kubelet", "--kubeconfig", str(file))

    def _write_facts(self) -> None:
        """What the kubelet and the device stand-ins must know of this machine."""
        assert self.config is not None
        document = self.config.find("KubeNodeConfig")
        control = self.role in ("controlplane", "init")
        labels = dict((document or {}).get("labels") or self.config.get("machine.nodeLabels") or {})
        taints = dict((document or {}).get("taints") or self.config.get("machine.nodeTaints") or {})
        if control and document is None:
            labels.setdefault("node-role.kubernetes.io/control-plane", "")
            if not self.config.get("cluster.allowSchedulingOnControlPlanes"):
                taints.setdefault("node-role.kubernetes.io/control-plane", "NoSchedule")
        images_ = (self.config.get("machine.kubelet.image"), (self.config.find("KubeletConfig") or {}).get("image"))
        kubernetes = next((str(image).rsplit(":", 1)[-1] for image in images_ if image), self.facts["kubernetes_version"])
        found = {key: value for key, value in self.gpu().items() if key not in ("loaded", "problem")}
        slot = self.running()
        facts = {
            "name": self.hostname, "address": self.address, "arch": self.arch, "labels": labels, "taints": taints,
            "talos_version": slot["version"], "kubernetes_version": kubernetes, "gpu": found if self.hardware["devices"] else None,
            "schematic": slot["schematic"],
        }  # fmt: skip
        fresh = self.dir / "node.json.new"
        fresh.write_text(json.dumps(facts), encoding="utf-8")
        fresh.replace(self.dir / "node.json")

    def _spawn(self, name: str, module: str, *arguments: str) -> None:
        command = [self.facts.get("python") or sys.executable, "-m", module, "--lab", str(self.lab), "--node", self.name, *arguments]
        with (self.dir / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_die_with_parent
            )
        self.log(f"[talos] service[{name}](Running): Started task {name} (PID {self.children[name].pid})")

    def _stop_children(self, *, force: bool) -> None:
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL if force else signal.SIGTERM)
        for child in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self.children = {}

    # -- read-outs ---------------------------------------------------------------------------------------------------

    def services(self) -> list[tuple[str, str, str, str]]:
        """Service, state, health, last event."""
        running, failed = ("Running", "OK", ""), ("Failed", "Fail", "Failed to run: exit code 1")
        rows = dict.fromkeys(("apid", "containerd", "cri", "kubelet", "machined", "syslogd", "udevd"), running)
        rows |= dict.fromkeys(("auditd", "dashboard"), ("Running", "?", ""))
        if not self.kubelet_runs():
            rows["kubelet"] = ("Waiting", "?", "Waiting for the Kubernetes API")
        if self.role in ("controlplane", "init"):
            etcd = ("Running", "Fail" if self.fault("etcd-unhealthy") else "OK", "")
            rows |= {"trustd": running, "etcd": etcd if self.state["bootstrapped"] else ("Preparing", "?", "Running pre state")}
        if any("nvidia-container-toolkit" in item["name"] for item in self.running()["extensions"]):
            works = self.gpu()["modules"]
            rows["ext-nvidia-persistenced"] = running if works else failed
            rows["ext-nvidia-cdi-gen"] = ("Finished", "?", "Service finished successfully") if works else failed
        event = "Started task {0} (PID {1}) for container {0}"
        return [(name, *row[:2], row[2] or event.format(name, 2000 + i)) for i, (name, row) in enumerate(sorted(rows.items()))]

    def members(self) -> list[dict[str, str]]:
        """All machines of the lab that carry the same cluster, as the discovery service would know them."""
        found = []
        for name, node in self.facts["nodes"].items():
            if name == self.name:
                state: dict[str, Any] = self.state
            else:
                try:
                    state = json.loads((self.lab / "nodes" / name / "machine.json").read_text(encoding="utf-8"))
                except (FileNotFoundError, ValueError):
                    continue
            if not state.get("config") or not state.get("installed"):
                continue
            config = configs.load(state["config"], contract=self.contract())
            if self._cluster_id(config) != self._cluster_id(self.config):
                continue
            host = (config.find("HostnameConfig") or {}).get("hostname") or config.get("machine.network.hostname") or name
            found.append({"hostname": str(host), "address": node["address"], "type": str(config.get("machine.type")),
                          "version": state["slots"][state["active"]]["version"],
                          "id": hashlib.sha256(name.encode()).hexdigest()[:32]})  # fmt: skip
        return found

    @staticmethod
    def _cluster_id(config: configs.Config | None) -> Any:
        return config and (config.get("cluster.id") or (config.find("DiscoveryIdentityConfig") or {}).get("clusterID"))

    def read(self, path: str) -> bytes:
        """The content of a file on the machine."""
        made = {
            "/proc/cmdline": self.cmdline() + "\n",
            "/proc/modules": "".join(f"{name} 131072 0 - Live 0x0000000000000000\n" for name in self.loaded_modules()),
            "/proc/meminfo": self._meminfo(),
            "/proc/version": f"Linux version {resources.kernel(self)}\n",
        }
        if path in made:
            return made[path].encode()
        if path == "/proc/config.gz":
            import gzip

            sva = images.release(self.running()["version"]) >= (1, 14, 1)
            return gzip.compress(b"CONFIG_ARM_SMMU_V3=y\n" + (b"CONFIG_ARM_SMMU_V3_SVA=y\n" if sva else b"# CONFIG_ARM_SMMU_V3_SVA is not set\n"))
        if path.startswith("/proc/driver/nvidia/version") and self.gpu()["modules"]:
            return f"NVRM version: NVIDIA UNIX Kernel Module  {self.gpu()['driver']}\n".encode()
        real = self.var / path.removeprefix("/var/").lstrip("/") if path.startswith("/var/") else Path(path)
        if not path.startswith(("/var/", "/sys/")) and path not in ("/etc", "/proc", "/var", "/"):
            raise transport.RpcError("NotFound", f"stat {path}: no such file or directory")
        if real.is_dir() or path in ("/etc", "/proc", "/var", "/"):
            raise transport.RpcError("Unknown", "path must be a regular file")
        try:
            return real.read_bytes()
        except OSError:
            raise transport.RpcError("NotFound", f"stat {path}: no such file or directory") from None

    def _meminfo(self) -> str:
        total = self.hardware["memory_bytes"] // 1024
        rows = {"MemTotal": total, "MemFree": total * 8 // 10, "MemAvailable": total * 9 // 10, "Buffers": 36000, "Cached": total // 20}
        return "".join(f"{key + ':':<16}{value:>8} kB\n" for key, value in rows.items())


def snapshot() -> bytes:
    """A database file followed by its checksum, of the size of a small one."""
    body = random.Random(1).randbytes(24576 + 8192)
    return body + hashlib.sha256(body).digest()


def main() -> int:
    parser = argparse.ArgumentParser(prog="motley_lab.talos.machine", description="A simulated Talos machine.")
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--no-kubernetes", action="store_true", help="start neither kubelet nor Kubernetes API")
    args = parser.parse_args()
    machine = Machine(args.lab, args.node, kubernetes=not args.no_kubernetes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: machine.events.put("stop"))
    machine.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
