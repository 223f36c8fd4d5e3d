# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m motley_lab.kubelet --lab LAB --node NODE --kubeconfig FILE`, inside the node's network namespace."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import logging
import pathlib
import shutil
import signal
import typing

import aiohttp
from aiohttp import web

from motley_lab.kube.kubelet_proxy import kubelet_token

from .api import Api, ApiError
from .node import PORT, Node
from .pods import PodRunner
from .server import Server

log = logging.getLogger("kubelet")
JSON = dict[str, typing.Any]
_PR_SET_PDEATHSIG = 1


class Kubelet:
    def __init__(self, node: Node) -> None:
        self.node = node
        self._pods: dict[str, PodRunner] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def find(self, namespace: str, name: str) -> PodRunner | None:
        return next((r for r in self._pods.values() if (r.pod["metadata"]["namespace"], r.pod["metadata"]["name"]) == (namespace, name)), None)

    def _see(self, pod: JSON) -> None:
        uid, over = pod["metadata"]["uid"], pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        runner = self._pods.get(uid)
        if runner is None:
            if not over or pod["metadata"].get("deletionTimestamp"):
                runner = self._pods[uid] = PodRunner(self.node, pod)
            if runner is not None and not pod["metadata"].get("deletionTimestamp"):
                runner.start()
        if runner is not None:
            if pod["metadata"].get("deletionTimestamp"):
                task = asyncio.create_task(runner.delete(pod))
                self._ends.add(task)
                task.add_done_callback(self._ends.discard)
            else:
                runner.pod = {**pod, "status": runner.pod.get("status")}

    async def _gone(self, uid: str) -> None:
        """Out of the API without the kubelet's own deletion: by force, or with the namespace."""
        runner = self._pods.pop(uid, None)
        if runner is not None:
            await asyncio.gather(*(c.running.kill() for c in (*runner.inits, *runner.mains) if c.running))
            runner.close()

    async def close(self) -> None:
        """End all containers, as a loss of power does: nothing is told to the API."""
        for uid in list(self._pods):
            await self._gone(uid)

    async def sync(self) -> None:
        """List and watch the Pods of this node; a list again whenever the watch breaks."""
        select = f"spec.nodeName={self.node.name}"
        while True:
            try:
                found = await self.node.api.get("/api/v1/pods", fieldSelector=select)
                there = {pod["metadata"]["uid"] for pod in found["items"]}
                for uid in set(self._pods) - there:
                    await self._gone(uid)
                for pod in found["items"]:
                    self._see(pod)
                version = found["metadata"]["resourceVersion"]
                async for kind, pod in self.node.api.watch("/api/v1/pods", fieldSelector=select, resourceVersion=version):
                    if kind == "DELETED":
                        await self._gone(pod["metadata"]["uid"])
                    elif kind != "BOOKMARK":
                        self._see(pod)
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("watch: %s", error or repr(error))
            await asyncio.sleep(0.5)


async def main(options: argparse.Namespace) -> None:
    lab = pathlib.Path(options.lab).absolute()
    facts = json.loads((lab / "lab.json").read_text())
    node = Node(lab, options.node, facts, Api(pathlib.Path(options.kubeconfig)))
    shutil.rmtree(node.run / "pods", ignore_errors=True)  # of before the reboot
    await node.api.open()
    kubelet = Kubelet(node)
    server = web.AppRunner(Server(kubelet_token(lab), kubelet.find).app, access_log=None, shutdown_timeout=0.5)
    await server.setup()
    await web.TCPSite(server, node.address, PORT, reuse_address=True).start()
    while True:
        try:
            await node.register()
            break
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("register: %s", error or repr(error))
            await asyncio.sleep(0.5)
    log.info("node %s registered", node.name)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(node.heartbeat()), asyncio.create_task(kubelet.sync())]
    await asyncio.wait([asyncio.create_task(stop.wait()), *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        with contextlib.suppress(asyncio.InvalidStateError, asyncio.CancelledError):
            if failure := task.exception():
                log.error("ended", exc_info=failure)
    # Containers die with this process (--die-with-parent): a stopped node stops them.


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(prog="motley_lab.kubelet")
    for option in ("--lab", "--node", "--kubeconfig"):
        parser.add_argument(option, required=True)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a node that loses its power stops at once
    asyncio.run(main(parser.parse_args()))
