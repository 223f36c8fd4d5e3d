# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.action import (
    talos_bootstrap,
    talos_image_check,
    talos_machine_config,
    talos_secrets,
    talos_upgrade,
)
from ansible_collections.motley.inference.plugins.module_utils import inventory
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils import talos_image, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.process import Done
from ansible_collections.motley.inference.plugins.plugin_utils.state import StateDirectory
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import Talosctl

REQUIRED = 'rpc error: code = Unavailable desc = connection error: desc = "error reading server preface: remote error: tls: certificate required"\n'
UNKNOWN = (
    'rpc error: code = Unavailable desc = connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: '
    'x509: certificate signed by unknown authority"\n'
)
REFUSED = 'rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: connect: connection refused"\n'
NOT_YET = "error executing bootstrap: rpc error: code = FailedPrecondition desc = bootstrap is not available yet\n"
NO_ETCD = "error getting members: rpc error: code = Unknown desc = open /system/secrets/etcd/admin.crt: no such file or directory\n"
ALREADY = "error executing bootstrap: rpc error: code = AlreadyExists desc = etcd data directory is not empty\n"
DRY = "Dry run summary:\nApplied configuration {0} (skipped in dry-run).\nConfig diff:\n\n{1}\n"
MUTATING = ("apply-config", "upgrade", "bootstrap", "reboot", "snapshot")


class Machine:
    """A node as talosctl shows it, as far as these actions look."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context
        self.mode = "maintenance"  # maintenance, running, foreign, down
        self.arch, self.tag, self.boot = "arm64", "v1.14.1", 1
        self.volumes: list[dict[str, Any]] = []
        self.config = ""
        self.installs = True
        self.image = {"schematic": "", "version": "v1.14.1"}
        self.next: dict[str, str] | None = None
        self.boots = True
        self.etcd, self.bootstrap = False, [""]
        self.calls: list[list[str]] = []
        self.modules = ["nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset"]

    def mutations(self) -> list[str]:
        return [" ".join(call) for call in self.calls if any(word in call for word in MUTATING) and "--dry-run" not in call]

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
    ) -> Done:
        arguments = list(argv[1:])
        while arguments[0].startswith("--"):
            del arguments[:2]
        self.calls.append([*arguments])
        rc, out, err = self._offline(arguments) if arguments[0] in ("gen", "validate") else self._online(arguments, "--insecure" in argv)
        return Done(tuple(argv), rc, out.encode(), err.encode(), 0.0)

    def _offline(self, arguments: list[str]) -> tuple[int, str, str]:
        if arguments[0] == "gen":
            flag = "--output-file" if "--output-file" in arguments else "--output"
            path = Path(arguments[arguments.index(flag) + 1])
            if "talosconfig" in arguments:
                path.write_text("context: home\ncontexts:\n    home:\n        endpoints: []\n        key: a2V5\n")
            elif arguments[1] == "secrets":
                path.write_text("cluster:\n    secret: c2VjcmV0LW9mLXRoZS1jbHVzdGVy\n")
            else:
                patches = "".join(Path(item[1:]).read_text() for item in arguments if item.startswith("@"))
                path.write_text(f"token: abcdef.0123456789abcdef\nimage: {arguments[arguments.index('--install-image') + 1]}\n{patches}")
        return 0, "", ""

    def _online(self, arguments: list[str], insecure: bool) -> tuple[int, str, str]:
        if self.mode == "down":
            return 1, "", REFUSED
        if insecure != (self.mode == "maintenance"):
            return 1, "", REQUIRED if insecure else UNKNOWN
        if self.mode == "foreign":
            return 1, "", UNKNOWN
        match arguments[0]:
            case "get":
                return 0, "\n".join(json.dumps(item) for item in self._objects(arguments[1])), ""
            case "version":
                tag = self.tag if self.mode == "maintenance" else self.image["version"]
                return 0, f"Client:\n\tTag: v1\nServer:\n\tNODE: x\n\tTag: {tag}\n\tOS/Arch: linux/{self.arch}\n", ""
            case "apply-config":
                return self._apply(Path(arguments[arguments.index("--file") + 1]).read_text(), dry="--dry-run" in arguments)
            case "upgrade":
                reference = arguments[arguments.index("--image") + 1]
                self.boot += 1
                if self.boots:
                    self.image = {"schematic": reference.split("/")[-1].split(":")[0], "version": reference.rpartition(":")[2]}
                return 0, "", ""
            case "etcd" if arguments[1] == "snapshot":
                Path(arguments[2]).write_text("db")
                return 0, "", ""
            case "etcd":
                return (0, "NODE ID\n", "") if self.etcd else (1, "", NO_ETCD)
            case "bootstrap":
                error = self.bootstrap.pop(0)
                self.etcd = self.etcd or not error
                return (1 if error else 0), "", error
        raise AssertionError(arguments)

    def _apply(self, text: str, *, dry: bool) -> tuple[int, str, str]:
        if dry:
            return (
                0,
                "",
                DRY.format(
                    "without a reboot",
                    "No changes." if text == self.config else "--- a\n+++ b\n@@ -1 +1 @@\n+token: abcdef.0123456789abcdef",
                ),
            )
        self.config = text
        if self.mode == "maintenance":
            self.boot += 1
            if self.installs:
                self.mode = "running"
                self.image = {"schematic": text.split("metal-installer/")[1].split(":")[0], "version": "v1.14.1"}
        return 0, "", "Applied configuration without a reboot\n"

    def _objects(self, resource: str) -> list[dict[str, Any]]:
        def item(identifier: str, spec: Any) -> dict[str, Any]:
            return {"metadata": {"id": identifier, "created": f"boot {self.boot}"}, "node": "", "spec": spec}

        match resource:
            case "machinestatus":
                return [item("machine", {"stage": self.mode, "status": {"ready": True, "unmetConditions": []}})]
            case "systemdisk":
                return [item("system-disk", {"devPath": "/dev/nvme0n1"})] if self.mode == "running" else []
            case "disks":
                return [item("nvme0n1", {"dev_path": "/dev/nvme0n1", "size": 10**12, "pretty_size": "1.0 TB", "readonly": False})]
            case "discoveredvolumes":
                return self.volumes
            case "modules":
                return [item(name, {"state": "Live"}) for name in self.modules]
            case "cmdline":
                return [item("cmdline", {"cmdline": "console=tty0 arm64.nobti"})]
            case "extensions":
                names = {
                    "nonfree-kmod-nvidia-lts": "580.178.04-v1",
                    "nvidia-container-toolkit-lts": "580.178.04-v1",
                    "schematic": self.image["schematic"],
                }
                return [item(str(number), {"metadata": {"name": name, "version": tag}}) for number, (name, tag) in enumerate(names.items())]
        raise AssertionError(resource)


class FakeContext:
    """An action's context without Ansible; waiting takes no time, and ends after a hundred looks."""

    def __init__(self, root: Path, *, check_mode: bool = False, **variables: Any) -> None:
        self.root, self.check_mode, self.host = root, check_mode, "spark-01"
        self.said: list[str] = []
        self.variables = {
            "motley_model": "m", "motley_talos_version": "v1.14.1", "ansible_host": "10.0.0.10", "motley_accelerators": ["gb10"], **variables,
        }  # fmt: skip

    @property
    def state(self) -> StateDirectory:
        return StateDirectory(self.root, check_mode=self.check_mode)

    def inventory(self) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
        return {"spark-01": self.variables}, {"motley_controlplane": ["spark-01"]}

    def cluster(self) -> dict[str, Any]:
        return inventory.cluster(*self.inventory())

    def node(self, name: str | None = None) -> dict[str, Any]:
        return next(node for node in self.cluster()["nodes"] if node["name"] == (name or self.host))

    def require_all_nodes(self) -> None:
        """One node is all there is."""

    def display(self, text: str) -> None:
        self.said.append(text)

    warn = display

    def progress(self, what: str, since: float, *, key: str = "") -> None:
        self.said.append(what)

    def wait(self, what: str, look: Any, *, timeout: float, every: float = 1.0, key: str = "", hint: str = "") -> Any:
        for _ in range(100):
            seen = look()
            if seen:
                return seen
        raise MotleyError(f"waited for {what}", hint=hint, node=key)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Machine]:
    context: Any = FakeContext(tmp_path / "state", motley_install_wipe=False)
    machine = Machine(context)

    def client(seen: Any) -> Talosctl:
        path = context.root / "talosconfig"
        return Talosctl("talosctl", talosconfig=path, run=machine, sleep=lambda seconds: None)

    monkeypatch.setattr(talos_node, "client", client)
    monkeypatch.setattr(talos_secrets, "Talosctl", lambda program: Talosctl(program, run=machine, sleep=lambda seconds: None))
    monkeypatch.setattr(talos_bootstrap.time, "sleep", lambda seconds: None)
    entry = talos_image._entry(
        talos_node.image_of(context, "spark-01"), "https://factory.talos.dev", talos_node.image_of(context, "spark-01").id, {}
    )
    talos_node.lock_node(context, "spark-01", {**entry, "driver": "580.178.04"})
    return context, machine


def _run(module: Any, context: Any, **arguments: Any) -> dict[str, Any]:
    action = object.__new__(module.ActionModule)
    defaults = {name: option.get("default") for name, option in module.ActionModule.ARGUMENTS.items()}
    result: dict[str, Any] = action.perform({**defaults, **arguments}, context)
    return result


def _check(context: FakeContext) -> FakeContext:
    return FakeContext(
        context.root, check_mode=True, **{name: value for name, value in context.variables.items() if name.startswith("motley_install")}
    )


def test_from_a_bare_machine_and_again(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    assert _run(talos_secrets, context)["made"] == ["secrets.yaml", "talosconfig"]
    assert "10.0.0.10" in (context.root / "talosconfig").read_text()
    assert (context.root / "secrets.yaml").stat().st_mode & 0o777 == 0o600
    first = _run(talos_machine_config, context)
    assert (first["changed"], first["applied"], first["check"]) == (True, True, True)
    assert "0123456789abcdef" not in json.dumps(first)
    assert "0123456789abcdef" not in (context.root / "rendered/spark-01/machineconfig.yaml").read_text()
    assert all(check["passed"] for check in _run(talos_image_check, context)["checks"])
    machine.calls.clear()
    assert not _run(talos_secrets, context)["changed"]
    again = _run(talos_machine_config, context)
    assert (again["changed"], again["applied"], again["check"]) == (False, False, False)
    assert machine.mutations() == []
    assert not (context.root / ".work").exists()


def test_check_runs_mutate_nothing_and_leave_no_secret(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    for mode in ("maintenance", "down"):
        machine.mode = mode
        check = _check(context)
        assert _run(talos_secrets, check)["changed"]
        assert _run(talos_machine_config, check)["changed"]
        assert _run(talos_bootstrap, check)["changed"]
    assert machine.mutations() == []
    assert not (context.root / "secrets.yaml").exists()
    rendered = (context.root / "check/rendered/spark-01/machineconfig.yaml").read_text()
    assert "<generated>" in rendered
    assert "0123456789abcdef" not in rendered


def test_secrets_are_never_made_over_a_live_cluster(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    machine.mode = "foreign"
    with pytest.raises(MotleyError, match="configured already"):
        _run(talos_secrets, context)
    machine.mode = "down"
    with pytest.raises(MotleyError, match="does not answer"):
        _run(talos_secrets, context)
    assert not (context.root / "secrets.yaml").exists()


def _volume(name: str) -> dict[str, Any]:
    return {
        "metadata": {"id": name},
        "spec": {"devPath": f"/dev/{name}", "parentDevPath": "/dev/nvme0n1", "type": "partition", "name": "ext4", "size": 10**9},
    }


def test_a_disk_that_holds_something_is_refused_unless_this_host_says_so(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    machine.volumes = [_volume("nvme0n1p1")]
    with pytest.raises(MotleyError) as caught:
        _run(talos_machine_config, context)
    assert "/dev/nvme0n1p1 1.0 GB ext4" in caught.value.evidence
    assert "motley_install_wipe: true" in caught.value.hint
    assert machine.mutations() == []
    context.variables["motley_install_wipe"] = True
    assert _run(talos_machine_config, context)["applied"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"arch": "amd64"}, "another machine"), ({"tag": "v1.13.9"}, "media.yml")],
    ids=["architecture", "older medium"],
)
def test_the_wrong_machine_is_not_installed(lab: tuple[Any, Machine], change: dict[str, str], words: str) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    for name, value in change.items():
        setattr(machine, name, value)
    with pytest.raises(MotleyError) as caught:
        _run(talos_machine_config, context)
    assert words in caught.value.hint
    assert machine.mutations() == []


def test_an_installation_that_fails_ends_the_wait(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    machine.installs = False
    with pytest.raises(MotleyError, match="installation failed"):
        _run(talos_machine_config, context)
    assert context.state.node_facts("spark-01")["restarting"] is True      # the next run has to wait for it
    machine.installs, machine.mode = True, "maintenance"
    _run(talos_machine_config, context)
    assert context.state.node_facts("spark-01")["restarting"] is False


@pytest.mark.parametrize(
    ("answers", "changed"),
    [([""], True), ([NOT_YET, NOT_YET, ""], True), ([ALREADY], False)],
    ids=["at once", "not yet", "somebody was faster"],
)
def test_etcd_is_started_once(lab: tuple[Any, Machine], answers: list[str], changed: bool) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    machine.mode, machine.bootstrap = "running", [*answers]
    assert _run(talos_bootstrap, context)["changed"] is changed
    machine.etcd = True
    machine.calls.clear()
    assert not _run(talos_bootstrap, context)["changed"]
    assert machine.mutations() == []


def test_a_lost_etcd_is_not_begun_anew(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    machine.mode = "running"
    _run(talos_bootstrap, context)
    machine.etcd = False
    machine.calls.clear()
    with pytest.raises(MotleyError, match="started on this installation before"):
        _run(talos_bootstrap, context)
    assert machine.mutations() == []


def test_upgrade_compares_first_and_saves_etcd(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    machine.mode, machine.etcd = "running", True
    assert _run(talos_image_check, context, moment="before")["upgrade"]
    assert _run(talos_upgrade, _check(context))["changed"]
    assert machine.mutations() == []
    assert _run(talos_upgrade, context)["changed"]
    sent = machine.mutations()
    assert sent[0].startswith("etcd snapshot")
    assert "--reboot-mode powercycle" in sent[1]
    assert len(list((context.root / "snapshots").glob("*.db"))) == 1
    assert not _run(talos_image_check, context, moment="before")["upgrade"]
    machine.calls.clear()
    assert not _run(talos_upgrade, context)["changed"]
    assert machine.mutations() == []


def test_an_upgrade_that_falls_back_is_said_so(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    machine.mode, machine.boots = "running", False
    machine.image["schematic"] = "a" * 64
    with pytest.raises(MotleyError, match="did not boot"):
        _run(talos_upgrade, context)


def test_a_node_of_another_role_has_its_turn_later(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    assert _run(talos_upgrade, context, role="worker")["skipped"]
    assert machine.calls == []


def test_a_node_without_its_modules_is_not_as_planned(lab: tuple[Any, Machine]) -> None:
    context, machine = lab
    _run(talos_secrets, context)
    _run(talos_machine_config, context)
    machine.modules = ["nvidia"]
    assert not _run(talos_image_check, context, moment="before")["upgrade"]
    assert _run(talos_machine_config, context)["check"]
    with pytest.raises(MotleyError, match="not as planned: modules"):
        _run(talos_image_check, context, timeout=0)
