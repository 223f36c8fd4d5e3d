# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our client against an API server: applied, unchanged, changed, made anew, dry, refused."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.kube import gpu, objects
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Kube, KubeError, KubeUnreachable, apply_all, delete_all, wait_all

pytest.importorskip("kubernetes")
pytest.importorskip("aiohttp")
ROOT = Path(__file__).resolve().parents[3]
TOKEN = "test-token"


def kubeconfig(path: Path, port: int, *, token: str = TOKEN) -> Path:
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "motley_lab.kube.server", "--standalone", "--port", str(port)]
    environment = {**os.environ, "MOTLEY_LAB_KUBE_TOKEN": TOKEN, "PYTHONPATH": str(ROOT / "lab")}
    folder = tmp_path_factory.mktemp("kube")
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        client = Kube(kubeconfig(folder / "config", port))
        deadline = time.monotonic() + 20
        while True:
            try:
                client.version()
                break
            except KubeUnreachable:
                assert time.monotonic() < deadline, "the API server did not come up"
                time.sleep(0.1)
        yield port, folder / "config"
        process.terminate()


@pytest.fixture
def kube(server: tuple[int, Path]) -> Kube:
    return Kube(server[1])


def config_map(name: str, space: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": space}, "data": data}


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}


def actions(changes: list[Any]) -> list[str]:
    return [change.action for change in changes]


def test_four_runs(kube: Kube) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "four"}, "stringData": {"token": "geheim-123"}}
    wanted = [config_map("c", "four", a="1"), secret, namespace("four")]
    assert actions(apply_all(kube, wanted, dry_run=True)) == ["created"] * 3
    assert kube.get(objects.identity(namespace("four"))) is None, "a dry run leaves nothing behind"
    assert actions(apply_all(kube, wanted)) == ["created"] * 3
    assert actions(apply_all(kube, wanted, dry_run=True)) == actions(apply_all(kube, wanted)) == ["unchanged"] * 3
    wanted[0]["data"]["a"] = "2"
    (_, changed, _) = apply_all(kube, wanted, dry_run=True)
    assert (changed.action, changed.before["data"], changed.after["data"]) == ("changed", {"a": "1"}, {"a": "2"})
    secret["stringData"] = {"token": "anders-456"}
    changes = apply_all(kube, wanted)
    assert actions(changes) == ["unchanged", "changed", "changed"]
    assert not [t for t in ("geheim", "anders") if t in json.dumps([[c.before, c.after] for c in changes])]


def test_what_can_not_be_changed_is_made_anew(kube: Kube) -> None:
    apply_all(kube, [gpu.runtime_class("nvidia")])
    other = gpu.runtime_class("nvidia-legacy")
    assert actions(apply_all(kube, [other], dry_run=True)) == ["recreated"]
    live = kube.get(objects.identity(other))
    assert live
    assert live["handler"] == "nvidia", "a dry run leaves it as it is"
    assert actions(apply_all(kube, [other])) == ["recreated"]
    live = kube.get(objects.identity(other))
    assert live
    assert live["handler"] == "nvidia-legacy"
    with pytest.raises(KubeError) as caught:
        apply_all(kube, [gpu.runtime_class("third")], recreate=False)
    assert caught.value.immutable
    delete_all(kube, [objects.identity(other)])


def test_misspelt_fields_are_errors(kube: Kube) -> None:
    apply_all(kube, [namespace("strict")])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "strict"},
           "spec": {"hostNetwrk": True, "containers": [{"name": "c", "image": "busybox:1"}]}}  # fmt: skip
    with pytest.raises(KubeError, match="hostNetwrk") as caught:
        apply_all(kube, [pod])
    assert caught.value.status in (400, 500)


def test_fields_of_others_are_a_conflict_until_they_are_taken_over(kube: Kube) -> None:
    apply_all(kube, [namespace("shared")])
    path = "/api/v1/namespaces/shared/configmaps"
    kube.request("POST", path, query={"fieldManager": "kubectl"}, body=config_map("c", "shared", a="theirs"))
    with pytest.raises(KubeError, match="conflict") as caught:
        apply_all(kube, [config_map("c", "shared", a="ours")])
    assert "force_conflicts" in caught.value.hint
    assert actions(apply_all(kube, [config_map("c", "shared", a="ours")], force=True)) == ["changed"]


def test_taken_away_and_gone(kube: Kube) -> None:
    apply_all(kube, [namespace("gone"), config_map("c", "gone")])
    who = [objects.identity(config_map("c", "gone")), objects.identity(namespace("gone"))]
    assert actions(delete_all(kube, who, dry_run=True)) == ["deleted", "deleted"]
    assert kube.get(who[0])
    assert actions(delete_all(kube, who, timeout=20)) == ["deleted", "deleted"]
    assert kube.get(who[1]) is None
    assert actions(delete_all(kube, who)) == ["absent", "absent"]


def test_waits_end_with_the_reason(kube: Kube) -> None:
    apply_all(kube, [namespace("wait")])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "wait"}, "spec": {
        "nodeSelector": {"kubernetes.io/hostname": "nowhere"}, "containers": [{"name": "c", "image": "busybox:1"}]}}  # fmt: skip
    apply_all(kube, [pod])
    with pytest.raises(MotleyError, match=r"waited 1 s for Pod wait/p"):
        wait_all(kube, [objects.identity(pod)], timeout=1)
    assert list(wait_all(kube, [objects.identity(namespace("wait"))], timeout=5))


def test_unknown_kinds_are_looked_up(kube: Kube) -> None:
    row = kube.resource("coordination.k8s.io/v1", "Lease")
    assert (row.plural, row.namespaced) == ("leases", True)
    with pytest.raises(MotleyError, match="has no kind Unheard"):
        kube.resource("example.com/v1", "Unheard")


def test_bad_kubeconfigs(server: tuple[int, Path], tmp_path: Path) -> None:
    with pytest.raises(MotleyError, match="no kubeconfig at"):
        Kube(tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(MotleyError, match="is no kubeconfig"):
        Kube(tmp_path / "empty")
    with pytest.raises(KubeError, match="GET /api/v1/namespaces") as caught:
        Kube(kubeconfig(tmp_path / "wrong", server[0], token="wrong")).list_objects("v1", "Namespace")
    assert caught.value.status == 401
    with pytest.raises(KubeUnreachable, match="does not answer"):
        Kube(kubeconfig(tmp_path / "nobody", 1)).version()


def test_keys_do_not_stay_in_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    client = authority.issue_cert("admin")
    config = json.loads(kubeconfig(tmp_path / "config", 1).read_text())
    config["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1", "certificate-authority-data": encoded(authority.cert_pem.bytes())}
    config["users"][0]["user"] = {
        "client-certificate-data": encoded(client.cert_chain_pems[0].bytes()), "client-key-data": encoded(client.private_key_pem.bytes())}  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    Kube(tmp_path / "config")
    assert list(folder.iterdir()) == []


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
