# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods through the real API server of the lab and real bubblewrap: what they see, their status, events, restarts and end."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
from typing import Any

import pytest

from .bed import IMAGE, Bed, needs_bwrap, run

pytestmark = needs_bwrap
SHELL = ["/bin/sh", "-c"]


def container(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "m", "image": IMAGE, "command": [*SHELL, script], **more}


def alive(marker: str) -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_a_pod_sees_its_own_world(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        for kind, data in (("configmaps", {"data": {"k": "from-config"}}), ("secrets", {"stringData": {"token": "from-secret"}})):
            await here.api.request("POST", f"/api/v1/namespaces/t/{kind}", body={
                "apiVersion": "v1", "kind": "Secret" if kind == "secrets" else "ConfigMap", "metadata": {"name": "o"}, **data})
        script = ("cat /share/f /etc/motley/token; echo; cat /cm/k; echo; echo $NAME $FROM_IMAGE $(hostname) $$$$; stat -fc %b /dev/shm; stat -fc %S /dev/shm; "
                  "ls -d /proc/[0-9]* | wc -l; touch /etc/mine /state/kept; test -e /etc/shadow || echo no-shadow; pwd")  # fmt: skip
        await here.create("p", {
            "restartPolicy": "Never", "initContainers": [{**container("echo from-init > /share/f"), "name": "i", "volumeMounts": [{"name": "e", "mountPath": "/share"}]}],
            "containers": [container(script, workingDir="/share", args=["unused"], env=[{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                                     volumeMounts=[{"name": "e", "mountPath": "/share"}, {"name": "shm", "mountPath": "/dev/shm"}, {"name": "c", "mountPath": "/cm"},
                                                   {"name": "s", "mountPath": "/etc/motley"}, {"name": "h", "mountPath": "/state"}])],
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}, {"name": "c", "configMap": {"name": "o"}},
                        {"name": "s", "secret": {"secretName": "o", "defaultMode": 256}}, {"name": "h", "hostPath": {"path": "/var/lib/x", "type": "DirectoryOrCreate"}}]})
        status = await here.phase("p", "Succeeded")
        lines = here.log("p").splitlines()
        assert lines[:3] == ["from-init", "from-secret", "from-config"]
        assert lines[3].split()[:3] == ["p", "yes", "p"] and int(lines[3].split()[3]) < 5
        assert int(lines[4]) * int(lines[5]) == 8 * 2**20 and int(lines[6]) < 10 and lines[7:] == ["no-shadow", "/share"]
        assert (here.node.var / "lib/x/kept").exists()
        (main,), (init,) = status["containerStatuses"], status["initContainerStatuses"]
        assert main["state"]["terminated"]["exitCode"] == 0 and init["state"]["terminated"]["reason"] == "Completed" and main["imageID"].endswith("d" * 64)
        reasons = [reason for reason, _ in await here.events("p")]
        assert {"Pulling", "Pulled", "Created", "Started"} <= set(reasons)

    run(tmp_path, body)


@pytest.mark.parametrize(("spec", "state", "event"), [
    ({"command": ["nosuch"]}, ("terminated", "StartError", 'exec: "nosuch": executable file not found in $PATH'), "Failed"),
    ({"command": ["/nosuch"]}, ("terminated", "StartError", 'exec: "/nosuch": stat /nosuch: no such file or directory'), "Failed"),
    ({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k"}}}]}, ("waiting", "CreateContainerConfigError", 'secret "absent" not found'), "Failed"),
    ({"volumeMounts": [{"name": "h", "mountPath": "/x"}]}, ("waiting", "CreateContainerError", 'failed to mkdir "/srv/x": mkdir /srv: read-only file system'), "Failed"),
    ({"volumeMounts": [{"name": "c", "mountPath": "/x"}]}, ("waiting", "ContainerCreating", ""), "FailedMount"),
])
def test_containers_that_cannot_start(tmp_path: pathlib.Path, spec: dict[str, Any], state: tuple[str, str, str], event: str) -> None:
    kind, reason, message = state
    volumes = [{"name": "h", "hostPath": {"path": "/srv/x", "type": "DirectoryOrCreate"}}]
    if any(mount["name"] == "c" for mount in spec.get("volumeMounts", [])):
        volumes = [{"name": "c", "configMap": {"name": "absent"}}]

    async def body(here: Bed) -> None:
        await here.create("p", {"restartPolicy": "Never", "containers": [{**container("true"), **spec}], "volumes": volumes})
        status = await here.until("p", lambda s: s.get("containerStatuses", [{}])[0].get("state", {}).get(kind, {}).get("reason") == reason)
        assert message in status["containerStatuses"][0]["state"][kind].get("message", "")
        for _ in range(40):
            if event in [found for found, _ in await here.events("p")]:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(await here.events("p"))

    run(tmp_path, body)


def test_restart_backoff_and_previous_log(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        await here.create("p", {"containers": [container("echo run; exit 3")]})
        status = await here.until("p", lambda s: "waiting" in s.get("containerStatuses", [{}])[0].get("state", {}) and s["containerStatuses"][0]["restartCount"] == 1)
        (entry,) = status["containerStatuses"]
        assert entry["state"]["waiting"]["reason"] == "CrashLoopBackOff" and entry["state"]["waiting"]["message"].startswith("back-off 10s restarting")
        assert entry["lastState"]["terminated"]["exitCode"] == 3 and status["phase"] == "Running"
        assert (here.log("p", restart=0), here.log("p", restart=1)) == ("run\n", "run\n")

    run(tmp_path, body)


def test_probes_decide_readiness_and_life(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        quick = {"periodSeconds": 1, "failureThreshold": 1}
        service = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = service.sockets[0].getsockname()[1]
        await here.create("p", {"containers": [container("sleep 600", readinessProbe={"exec": {"command": ["test", "-e", "/state/up"]}, **quick},
                                                         livenessProbe={"tcpSocket": {"port": port}, **quick}, volumeMounts=[{"name": "h", "mountPath": "/state"}])],
                                "volumes": [{"name": "h", "hostPath": {"path": "/var/lib/x", "type": "DirectoryOrCreate"}}], "terminationGracePeriodSeconds": 1})  # fmt: skip
        started = await here.phase("p", "Running")
        assert not started["containerStatuses"][0]["ready"], (started, await here.events("p"))
        (here.node.var / "lib/x/up").touch()
        ready = await here.until("p", lambda s: s["containerStatuses"][0]["ready"])
        assert {c["type"]: c["status"] for c in ready["conditions"]}["Ready"] == "True" and ready["containerStatuses"][0]["restartCount"] == 0
        service.close()
        await here.until("p", lambda s: s["containerStatuses"][0]["restartCount"] >= 1)
        texts = [text for _, text in await here.events("p")]
        assert any(text.startswith("Liveness probe failed") for text in texts) and "Container m failed liveness probe, will be restarted" in texts

    run(tmp_path, body)


def test_deletion_is_graceful_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        marker = f"motley-test-{os.getpid()}-{os.urandom(4).hex()}"
        await here.create("p", {"containers": [container(f'trap "echo bye > /state/bye; exit 0" TERM; : {marker}; touch /state/up; while :; do sleep 0.1; done',
                                                         volumeMounts=[{"name": "h", "mountPath": "/state"}])],
                                "volumes": [{"name": "h", "hostPath": {"path": "/var/lib/x", "type": "DirectoryOrCreate"}}]})  # fmt: skip
        await here.phase("p", "Running")
        while not (here.node.var / "lib/x/up").exists():
            await asyncio.sleep(0.05)
        assert alive(marker)
        await here.api.request("DELETE", "/api/v1/namespaces/t/pods/p")
        await here.gone("p")
        assert (here.node.var / "lib/x/bye").read_text() == "bye\n" and not alive(marker)
        assert not list((here.node.run / "pods").iterdir())

    run(tmp_path, body)


def test_devices_are_counted_handed_out_and_seen(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        await here.api.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", body={
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"})
        folder = {"name": "d", "hostPath": {"path": "/var/lib/kubelet/device-plugins", "type": "Directory"}}
        plugin = {"name": "m", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "volumeMounts": [{"name": "d", "mountPath": folder["hostPath"]["path"]}]}  # type: ignore[index]
        await here.create("plugin", {"runtimeClassName": "nvidia", "containers": [plugin], "volumes": [folder]})
        await here.phase("plugin", "Running")

        async def offered(count: str) -> None:
            for _ in range(200):
                if (await here.api.get("/api/v1/nodes/node-1"))["status"]["allocatable"].get("nvidia.com/gpu") == count:
                    return
                await asyncio.sleep(0.05)
            raise AssertionError(f"not {count} devices")

        await offered("2")
        limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        await here.create("one", {"runtimeClassName": "nvidia", "containers": [container("sleep 600", **limits)]})
        await here.phase("one", "Running")
        await here.create("two", {"runtimeClassName": "nvidia", "restartPolicy": "Never", "containers": [container(
            "nvidia-smi -L; echo $MOTLEY_LAB_DEVICE_BYTES $MOTLEY_LAB_OVERHEAD_BYTES $NVIDIA_VISIBLE_DEVICES", **limits)]})
        await here.phase("two", "Succeeded")
        uuid = here.node.devices[1]["uuid"]
        assert here.log("two").splitlines() == [f"GPU 0: NVIDIA GeForce RTX 4090 (UUID: {uuid})", f"57982058 10737418 {uuid}"]
        await here.create("three", {"runtimeClassName": "nvidia", "restartPolicy": "Never", "containers": [container(
            "true", resources={"limits": {"nvidia.com/gpu": "2"}})]})
        refused = await here.phase("three", "Failed")
        assert refused["reason"] == "UnexpectedAdmissionError"
        await here.create("none", {"restartPolicy": "Never", "containers": [container("nvidia-smi || echo none")]})
        await here.phase("none", "Succeeded")
        assert here.log("none").splitlines()[-1] == "none"
        await here.api.request("DELETE", "/api/v1/namespaces/t/pods/plugin")
        await offered("0")

    run(tmp_path, body)


def test_without_the_toolkit_there_is_no_sandbox(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        await here.api.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", body={
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"})
        await here.create("p", {"runtimeClassName": "nvidia", "containers": [container("true")]})
        for _ in range(100):
            texts = [text for reason, text in await here.events("p") if reason == "FailedCreatePodSandBox"]
            if texts:
                assert texts[0].endswith('failed to get sandbox runtime: no runtime for "nvidia" is configured')
                return
            await asyncio.sleep(0.05)
        raise AssertionError("no event")

    run(tmp_path, body, gpu={"toolkit": False})


def test_a_reboot_restarts_what_shall_run(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        from motley_lab.kubelet.__main__ import Kubelet

        await here.create("always", {"containers": [container("echo run; sleep 600")]})
        await here.create("never", {"restartPolicy": "Never", "containers": [container("sleep 600")]})
        for name in ("always", "never"):
            await here.phase(name, "Running")
        await here.kubelet.close()  # as the machine does: the containers are gone, nothing was told to the API
        shutil.rmtree(here.node.run / "pods")
        again = Kubelet(here.node)
        task = asyncio.create_task(again.sync())
        status = await here.until("always", lambda s: s["containerStatuses"][0]["restartCount"] == 1 and "running" in s["containerStatuses"][0]["state"])
        assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
        await here.phase("never", "Failed")
        task.cancel()
        await again.close()

    run(tmp_path, body)


def test_the_node_object(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        node = await here.api.get("/api/v1/nodes/node-1")
        info = node["status"]["nodeInfo"]
        assert (info["architecture"], info["osImage"], info["kubeletVersion"]) == ("amd64", "Talos (v1.14.1)", "v1.36.1")
        assert node["metadata"]["labels"].items() >= {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "node-1", "l": "v"}.items()
        assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250 and "nvidia.com/gpu" not in node["status"]["capacity"]
        facts = json.loads((here.node.home / "node.json").read_text())
        (here.node.home / "node.json").write_text(json.dumps({**facts, "labels": {"l": "w"}, "taints": {"role": "gpu:NoSchedule"}}))
        here.node.__post_init__()
        await here.node.register()  # after a config change and a reboot
        node = await here.api.get("/api/v1/nodes/node-1")
        assert node["metadata"]["labels"]["l"] == "w"
        assert {"key": "role", "value": "gpu", "effect": "NoSchedule"} in node["spec"]["taints"]

    run(tmp_path, body)
