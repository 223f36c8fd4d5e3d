# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The clients that people use: the `kubernetes` package and kubectl, with a kubelet behind the server."""

from __future__ import annotations

import copy
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes import client, config, dynamic, stream, watch

from .conftest import POD, TOKEN, Cluster

KUBECTL = shutil.which("kubectl")


@pytest.fixture(scope="module")
def kubeconfig(cluster: Cluster, authority: Any, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("kube")
    (folder / "ca.crt").write_bytes(authority.cert_pem.bytes())
    path = folder / "config"
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab", "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        "clusters": [{"name": "lab", "cluster": {"server": cluster.server, "certificate-authority": str(folder / "ca.crt")}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}]}))
    return path


@pytest.fixture(scope="module")
def core(kubeconfig: pathlib.Path) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))


@pytest.fixture(scope="module")
def pod(cluster: Cluster, kubelet: int) -> Iterator[str]:
    cluster.node("with-kubelet", address="127.0.0.1", port=kubelet)
    path = cluster.namespace("clients")
    body = copy.deepcopy(POD)
    body["spec"] |= {"nodeName": "with-kubelet", "containers": [{"name": name, "image": "b:1"} for name in ("main", "waiting")]}
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "main"}
    assert cluster.call("POST", f"{path}/pods", body).status == 201
    yield "p"
    cluster.call("DELETE", f"{path}/pods/p?gracePeriodSeconds=0")
    cluster.call("DELETE", "/api/v1/nodes/with-kubelet")


def test_python_client_applies_and_watches(cluster: Cluster, core: client.CoreV1Api) -> None:
    cluster.namespace("pyclient")
    made: Any = core.create_namespaced_config_map("pyclient", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"k": "v"}))
    applied = dynamic.DynamicClient(core.api_client).resources.get(api_version="v1", kind="ConfigMap").server_side_apply(
        body={"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "pyclient"}, "data": {"k": "v"}}, namespace="pyclient",
        field_manager="motley")
    assert applied.metadata.managedFields[0].manager == "motley"
    seen = []
    for event in watch.Watch().stream(core.list_namespaced_config_map, "pyclient", resource_version=made.metadata.resource_version,
                                      timeout_seconds=2):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 1:
            core.delete_namespaced_config_map("a", "pyclient")
        if len(seen) == 2:
            break
    assert seen == [("ADDED", "b"), ("DELETED", "a")]


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize(("command", "code"), [(["ls", "-l"], 0), (["exit", "7"], 7)])
def test_python_client_execs(core: client.CoreV1Api, command: list[str], code: int) -> None:
    done = stream.stream(core.connect_get_namespaced_pod_exec, "p", "clients", command=command, stdout=True, stderr=True, stdin=True,
                         _preload_content=False)
    done.write_stdin("typed")
    done.run_forever(timeout=5)
    assert (done.read_stdout(), done.read_stderr(), done.returncode) == (" ".join(command) + "\n", "typed", code)


@pytest.mark.usefixtures("pod")
def test_log_passes_options_and_refusals(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/clients/pods/p/log"
    assert cluster.call("GET", f"{path}?tailLines=3&pretty=1")["text"] == "log of main tailLines=3\n"
    refused = cluster.call("GET", f"{path}?container=waiting")
    assert (refused.status, refused["message"]) == (400, 'container "waiting" in pod "p" is waiting to start: ContainerCreating')
    assert cluster.call("GET", f"{path}?container=x")["message"] == "container x is not valid for pod p"


def _kubectl(kubeconfig: pathlib.Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(kubeconfig.parent), "PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig)}
    return subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, timeout=30, env=environment, check=False)


@pytest.mark.skipif(KUBECTL is None, reason="no kubectl here")
@pytest.mark.usefixtures("pod")
def test_kubectl_execs_and_reads_logs(kubeconfig: pathlib.Path) -> None:
    ran = _kubectl(kubeconfig, "exec", "-n", "clients", "p", "--", "ls", "-l")
    assert ran.stdout == "ls -l\n", ran.stderr
    failed = _kubectl(kubeconfig, "exec", "-n", "clients", "p", "--", "exit", "7")
    assert failed.returncode == 7, failed.stderr
    assert _kubectl(kubeconfig, "logs", "-n", "clients", "p", "--tail=2").stdout == "log of main tailLines=2\n"


@pytest.mark.skipif(KUBECTL is None, reason="no kubectl here")
def test_kubectl_applies_twice(cluster: Cluster, kubeconfig: pathlib.Path) -> None:
    cluster.namespace("kubectl")
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "kubectl"}, "data": {"k": "v"}}
    words = [_kubectl(kubeconfig, "apply", "-f", "-", text=yaml.safe_dump(body)).stdout for _ in range(2)]
    assert words == ["configmap/a created\n", "configmap/a unchanged\n"]
    body["dta"] = {}
    assert 'unknown field "dta"' in _kubectl(kubeconfig, "apply", "-f", "-", text=yaml.safe_dump(body)).stderr
    listed = _kubectl(kubeconfig, "get", "configmaps,namespaces", "-n", "kubectl", "-o", "wide").stdout
    assert "DATA" in listed and "Active" in listed
