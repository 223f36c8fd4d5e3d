# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One Pod on this node: sandbox, volumes, images, init containers, containers with probes and restarts, status, end."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pathlib
import shutil
import typing

import aiohttp

from .api import STRATEGIC, ApiError, now
from .environment import ConfigError, expand, resolve, service_links
from .images import Image, PullError
from .node import GPU, Node
from .probes import watch_probes
from .runtime import Running
from .volumes import MountError, RuntimeRefusal, Volume, Volumes, arguments

JSON = dict[str, typing.Any]
_BACKOFF = (0, 10, 20, 40, 80, 160, 300)
_NETWORK = (ApiError, aiohttp.ClientError, TimeoutError)


class Container:
    """The state of one container of a Pod, as its containerStatus shows it."""

    def __init__(self, spec: JSON, *, kind: str) -> None:
        self.spec, self.kind, self.name = spec, kind, spec["name"]
        self.state: JSON = {"waiting": {"reason": "PodInitializing" if kind == "containers" else "ContainerCreating"}}
        self.last: JSON = {}
        self.ready = self.started = False
        self.restarts = self.begun = 0
        self.image: Image | None = None
        self.running: Running | None = None

    @property
    def exit_code(self) -> int | None:
        code = self.state.get("terminated", {}).get("exitCode")
        return None if code is None else int(code)

    def status(self) -> JSON:
        made = {"name": self.name, "image": self.spec["image"], "imageID": "", "ready": self.ready, "started": self.started,
                "restartCount": self.restarts, "state": self.state, "lastState": self.last}
        if self.image:
            made["imageID"] = f"{self.image.reference.partition('@')[0].rpartition(':')[0]}@{self.image.digest}"
        return made


class PodRunner:
    """Runs a Pod from its binding to its removal."""

    def __init__(self, node: Node, pod: JSON) -> None:
        self.node, self.pod, self.uid = node, pod, pod["metadata"]["uid"]
        self.folder = node.run / "pods" / self.uid
        spec = pod["spec"]
        self.inits = [Container(c, kind="initContainers") for c in spec.get("initContainers") or []]
        self.mains = [Container(c, kind="containers") for c in spec["containers"]]
        if not self.inits:
            for container in self.mains:
                container.state = {"waiting": {"reason": "ContainerCreating"}}
        self._volumes: dict[str, Volume] = {}
        self._pushed: JSON = {}
        self._dirty = asyncio.Event()
        self._failed: tuple[str, str] | None = None
        self._deleting = self._finished = self._initialized = self._sandbox = False
        self._start = now()
        self._tasks: list[asyncio.Task[typing.Any]] = []
        # Below 10.244/16 as flannel gives them; the lab's Pods share their node's network all the same.
        self.pod_ip = node.address if spec.get("hostNetwork") else f"10.244.{int(self.uid[:2], 16)}.{int(self.uid[2:4], 16) or 1}"
        self._nvidia = False

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._recover()
        self._tasks = [asyncio.create_task(self._push_loop()), asyncio.create_task(self._guard(self._run))]

    async def _guard(self, work: typing.Callable[[], typing.Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a defect must show in the Pod, not vanish with its task
            await self.event("Failed", f"the lab's kubelet failed: {error!r}", warning=True)
            raise

    def _recover(self) -> None:
        """After a restart of the node nothing of a Pod runs any more: containers that had started count as ended."""
        status = self.pod.get("status") or {}
        old = {entry["name"]: entry for key in ("initContainerStatuses", "containerStatuses") for entry in status.get(key) or []}
        for container in (*self.inits, *self.mains):
            entry = old.get(container.name) or {}
            container.restarts = entry.get("restartCount", 0)
            state = entry.get("state") or {}
            if "running" in state:
                begun = state["running"].get("startedAt")
                container.state = {"terminated": {"exitCode": 137, "reason": "Error", "startedAt": begun, "finishedAt": now()}}
            elif "terminated" in state:
                container.state = {"terminated": state["terminated"]}
        self._start = status.get("startTime") or self._start

    async def _run(self) -> None:
        if not self.node.allocate(self.pod):
            wanted = sum(int((c.get("resources") or {}).get("limits", {}).get(GPU, 0)) for c in self.pod["spec"]["containers"])
            self._failed = ("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
                            f"{GPU}. Requested: {wanted}, Available: 0, which is unexpected")
            await self.event("UnexpectedAdmissionError", self._failed[1], warning=True)
            self._touch()
            return
        await self._prepare()
        for container in self.inits:
            if container.exit_code != 0:
                await self._cycle(container)
                if container.exit_code != 0:
                    self._failed = ("", "")
                    break
            container.ready = True
        if self._failed is None:
            self._initialized = True
            await asyncio.gather(*(self._cycle(container) for container in self.mains))
        self._finished = True
        self._touch()

    async def _prepare(self) -> None:
        """The sandbox and the volumes, tried again until they can be made."""
        delay = 1.0
        while True:
            try:
                await self._make_sandbox()
                self._volumes = await Volumes(
                    self.pod, self.folder, var=self.node.var, fetch=self.fetch, host_ip=self.node.address, pod_ip=self.pod_ip,
                    allocatable=self.node.allocatable(),
                ).make()
                self._sandbox = True
                return self._touch()
            except MountError as error:
                await self.event("FailedMount", str(error), warning=True)
            except RuntimeRefusal as error:
                await self.event("FailedCreatePodSandBox", f"Failed to create pod sandbox: rpc error: code = Unknown desc = {error}", warning=True)
            except _NETWORK:
                pass
            self._touch()
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, 10)

    async def _make_sandbox(self) -> None:
        name = self.pod["spec"].get("runtimeClassName")
        if name:
            try:
                handler = (await self.node.api.get(f"/apis/node.k8s.io/v1/runtimeclasses/{name}"))["handler"]
            except ApiError as error:
                raise RuntimeRefusal(f'RuntimeClass.node.k8s.io "{name}" not found' if error.status == 404 else str(error))
            if handler not in ("runc", "nvidia") or (handler == "nvidia" and not self.node.gpu.get("toolkit")):
                raise RuntimeRefusal(f'failed to get sandbox runtime: no runtime for "{handler}" is configured')
            self._nvidia = handler == "nvidia"

    async def fetch(self, kind: str, name: str) -> JSON | None:
        namespace = self.pod["metadata"]["namespace"]
        try:
            found = await self.node.api.get(f"/api/v1/namespaces/{namespace}/{kind.lower()}s/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return {**found, "kind": kind}

    # -- containers --------------------------------------------------------------------------------------------------

    async def _cycle(self, container: Container) -> None:
        """Run a container and restart it as the Pod's policy says."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if container.kind == "initContainers" and policy == "Always":
            policy = "OnFailure"
        crashes = 0
        if container.exit_code is not None:  # it ran before this kubelet did
            if policy == "Never" or (policy == "OnFailure" and container.exit_code == 0):
                return
            container.last, container.restarts = container.state, container.restarts + 1
        while True:
            seconds = await self._once(container)
            if policy == "Never" or (policy == "OnFailure" and container.exit_code == 0):
                return
            crashes = 0 if seconds > 600 else crashes
            delay = _BACKOFF[min(crashes, len(_BACKOFF) - 1)]
            crashes += 1
            if delay:
                name, meta = container.name, self.pod["metadata"]
                text = f"Back-off restarting failed container {name} in pod {meta['name']}_{meta['namespace']}({self.uid})"
                await self.event("BackOff", text, warning=True, container=container)
                container.last, container.state = container.state, {"waiting": {
                    "reason": "CrashLoopBackOff", "message": f"back-off {delay}s restarting failed container={name} pod={meta['name']}_"
                    f"{meta['namespace']}({self.uid})"}}
                self._touch()
                await asyncio.sleep(delay)
            else:
                container.last = container.state
            container.restarts += 1

    async def _once(self, container: Container) -> float:
        """Bring the container to running, whatever it takes, and wait for its end; how long it ran."""
        delay = 1.0
        while True:
            try:
                running = await self._start_container(container)
                break
            except PullError as error:
                again = container.state.get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff")
                reason = "ImagePullBackOff" if again else "ErrImagePull"
                text = str(error) if reason == "ErrImagePull" else f'Back-off pulling image "{container.spec["image"]}": ErrImagePull: {error}'
                await self._refuse(container, reason, text)
            except ConfigError as error:
                await self._refuse(container, "CreateContainerConfigError", str(error), event=f"Error: {error}")
            except RuntimeRefusal as error:
                await self._refuse(container, "CreateContainerError", str(error), event=f"Error: {error}")
            except _NETWORK as error:
                await self._refuse(container, "CreateContainerError", str(error) or repr(error), event="")
            await asyncio.sleep(delay)
            delay = min(delay * 2, 15)
        begun = asyncio.get_running_loop().time()
        probes = asyncio.create_task(self._guard(lambda: watch_probes(self, container, running)))
        try:
            code = await running.wait()
        finally:
            probes.cancel()
        text, times = running.not_started, {"startedAt": container.state["running"]["startedAt"], "finishedAt": now()}
        reason = "StartError" if text else "Completed" if code == 0 else "Error"
        container.state = {"terminated": {"exitCode": 128 if text else code, "reason": reason, **times, **({"message": text} if text else {}),
                                          "containerID": f"containerd://{self.uid}-{container.begun}"}}  # fmt: skip
        if text:
            await self.event("Failed", f"Error: {text}", warning=True, container=container)
        container.ready = container.kind == "initContainers" and code == 0
        container.started, container.running = False, None
        self._touch()
        return asyncio.get_running_loop().time() - begun

    async def _refuse(self, container: Container, reason: str, message: str, *, event: str | None = None) -> None:
        container.state = {"waiting": {"reason": reason, "message": message}}
        self._touch()
        image = container.spec["image"]
        if reason == "ImagePullBackOff":
            await self.event("BackOff", f'Back-off pulling image "{image}"', container=container)
        pull = f'Failed to pull image "{image}": rpc error: code = NotFound desc = {message}'
        texts = [event] if event is not None else [pull, "Error: ErrImagePull"]
        if reason != "ImagePullBackOff":
            for text in filter(None, texts):
                await self.event("Failed", text, warning=True, container=container)

    async def _pull(self, container: Container) -> Image:
        reference, policy = container.spec["image"], container.spec.get("imagePullPolicy", "IfNotPresent")
        present = self.node.images.present(reference)
        if present and policy != "Always":
            await self.event("Pulled", f'Container image "{reference}" already present on machine', container=container)
            return present
        await self.event("Pulling", f'Pulling image "{reference}"', container=container)
        image = await self.node.images.pull(reference)
        await self.event("Pulled", f'Successfully pulled image "{reference}"', container=container)
        return image

    async def _start_container(self, container: Container) -> Running:
        spec, node = container.spec, self.node
        container.image = image = await self._pull(container)
        services = (await node.api.get(f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/services"))["items"]
        links = service_links(services, links=self.pod["spec"].get("enableServiceLinks", True))
        base = {"HOSTNAME": node.name if self.pod["spec"].get("hostNetwork") else self.pod["metadata"]["name"], **links}
        environment = await resolve(self.pod, spec, fetch=self.fetch, base=base | node.image_environment(image), host_ip=node.address,
                                    pod_ip=self.pod_ip, allocatable=node.allocatable())
        folder = self.folder / container.name
        view = node.view(self.pod, spec, image, environment=environment, folder=folder, nvidia=self._nvidia)
        view += arguments(spec, self._volumes)
        inherited = [] if spec.get("command") else image.command
        command = [expand(word, environment) for word in [*(spec.get("command") or inherited), *(spec.get("args") or [])]]
        if not command:
            raise RuntimeRefusal("failed to generate container spec: failed to generate spec: no command specified")
        await self.event("Created", f"Container created: {container.name}", container=container)
        log = self.log(container, container.restarts)
        running = await Running.start(view, command, environment=environment, folder=spec.get("workingDir") or "/", log=log)
        container.begun, container.running = container.begun + 1, running
        container.state = {"running": {"startedAt": now()}}
        await self.event("Started", f"Container started: {container.name}", container=container)
        self._touch()
        return running

    def log(self, container: Container, restart: int) -> pathlib.Path:
        meta = self.pod["metadata"]
        return self.node.var / "log/pods" / f"{meta['namespace']}_{meta['name']}_{self.uid}" / container.name / f"{restart}.log"

    # -- end -----------------------------------------------------------------------------------------------------------

    async def delete(self, pod: JSON) -> None:
        """Stop the containers within the grace period and take the Pod out of the API."""
        if self._deleting:
            return
        self._deleting, self.pod = True, pod
        meta = pod["metadata"]
        grace = meta.get("deletionGracePeriodSeconds")
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*(self._stop(c, grace) for c in (*self.inits, *self.mains) if c.running))
        self.close()
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while True:
            try:
                await self.node.api.request("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", body=body)
                return
            except ApiError as error:
                if error.status in (404, 409):
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(1)

    async def _stop(self, container: Container, grace: float) -> None:
        running = container.running
        if running is None:
            return
        await self.event("Killing", f"Stopping container {container.name}", container=container)
        hook = (container.spec.get("lifecycle") or {}).get("preStop", {}).get("exec")
        if hook:
            with contextlib.suppress(TimeoutError, OSError):
                await asyncio.wait_for((await running.enter(hook["command"])).wait(), timeout=grace)
        await running.stop(grace)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.node.allocated.pop(self.uid, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- status --------------------------------------------------------------------------------------------------------

    async def event(self, reason: str, message: str, *, warning: bool = False, container: Container | None = None) -> None:
        await self.node.events.add(self.pod, reason, message, warning=warning, container=container.name if container else "",
                                   kind=container.kind if container else "containers")  # fmt: skip

    def _touch(self) -> None:
        if self._failed or self._finished:
            self.node.allocated.pop(self.uid, None)
        self._dirty.set()

    touch = _touch

    def phase(self) -> str:
        if self._failed:
            return "Failed"
        if self._finished:
            return "Succeeded" if all(container.exit_code == 0 for container in self.mains) else "Failed"
        begun = self._initialized and all(container.begun or container.restarts for container in self.mains)
        return "Running" if begun else "Pending"

    def status(self) -> JSON:
        phase, ready = self.phase(), all(container.ready for container in self.mains)
        over = phase in ("Succeeded", "Failed")
        reason = {"reason": "PodCompleted"} if phase == "Succeeded" else {}
        names = " ".join(container.name for container in self.mains if not container.ready)
        waits = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{names}]"}
        unready = {} if ready else reason or waits
        conditions = [
            {"type": "PodReadyToStartContainers", "status": str(self._sandbox and not over)},
            {"type": "Initialized", "status": str(self._initialized or phase == "Succeeded"), **reason},
            {"type": "Ready", "status": str(ready), **unready},
            {"type": "ContainersReady", "status": str(ready), **unready},
        ]
        old = {entry["type"]: entry for entry in (self._pushed or self.pod.get("status") or {}).get("conditions") or []}
        for entry in conditions:
            there = old.get(entry["type"]) or {}
            same = there.get("status") == entry["status"]
            entry["lastTransitionTime"] = (there.get("lastTransitionTime") if same else None) or now()
        made = {"phase": phase, "conditions": conditions, "hostIP": self.node.address, "hostIPs": [{"ip": self.node.address}],
                "startTime": self._start, "containerStatuses": [container.status() for container in self.mains],
                "qosClass": self._quality()}  # fmt: skip
        if self.inits:
            made["initContainerStatuses"] = [container.status() for container in self.inits]
        if self._sandbox or self.pod["spec"].get("hostNetwork"):
            made |= {"podIP": self.pod_ip, "podIPs": [{"ip": self.pod_ip}]}
        if self._failed and self._failed[0]:
            made |= {"reason": self._failed[0], "message": self._failed[1]}
        return made

    def _quality(self) -> str:
        given = [(c.get("resources") or {}).get(side) or {} for c in self.pod["spec"]["containers"] for side in ("requests", "limits")]
        sides = [{key: value for key, value in side.items() if key in ("cpu", "memory")} for side in given]
        if not any(sides):
            return "BestEffort"
        return "Guaranteed" if all(len(r) == 2 for r in sides) and all(a == b for a, b in zip(sides[::2], sides[1::2], strict=True)) else "Burstable"

    async def _push_loop(self) -> None:
        """Send the status when it has changed; conditions merge by type, so the scheduler's stays."""
        meta = self.pod["metadata"]
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            status = self.status()
            if status != self._pushed:
                try:
                    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
                    await self.node.api.request("PATCH", path, body={"metadata": {"uid": self.uid}, "status": status}, kind=STRATEGIC)
                    self._pushed = copy.deepcopy(status)
                except ApiError as error:
                    if error.status in (404, 409):  # gone, or another Pod of the same name
                        await asyncio.sleep(1)
                        continue
                    self._dirty.set()
                    await asyncio.sleep(1)
                except (aiohttp.ClientError, TimeoutError):
                    self._dirty.set()
                    await asyncio.sleep(1)
            await asyncio.sleep(0.05)
