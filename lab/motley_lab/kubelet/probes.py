# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Startup, readiness and liveness probes of a running container."""

from __future__ import annotations

import asyncio
import contextlib
import typing

import aiohttp

if typing.TYPE_CHECKING:
    from .pods import Container, PodRunner
    from .runtime import Running

JSON = dict[str, typing.Any]


def _port(value: int | str, container: JSON) -> int:
    if isinstance(value, int):
        return value
    return next((port["containerPort"] for port in container.get("ports") or [] if port.get("name") == value), 0) or int(value)


async def probe(spec: JSON, container: JSON, running: Running, address: str) -> str:
    """Try once; the reason of a failure, empty when it succeeded."""
    timeout = spec.get("timeoutSeconds", 1)
    try:
        if "exec" in spec:
            process = await running.enter(spec["exec"]["command"], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
            try:
                output, _ = await asyncio.wait_for(process.communicate(), timeout)
            except TimeoutError:
                process.kill()
                return f"command timed out: {' '.join(spec['exec']['command'])!r} timed out after {timeout}s"
            return "" if process.returncode == 0 else output.decode(errors="replace") or f"exit code {process.returncode}"
        if "httpGet" in spec:
            get = spec["httpGet"]
            url = f"{get.get('scheme', 'HTTP').lower()}://{get.get('host') or address}:{_port(get['port'], container)}{get.get('path', '/')}"
            headers = {header["name"]: header["value"] for header in get.get("httpHeaders") or []}
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session:
                async with session.get(url, headers={"User-Agent": "kube-probe/1.36", **headers}, ssl=False, allow_redirects=False) as answer:
                    return "" if 200 <= answer.status < 400 else f"HTTP probe failed with statuscode: {answer.status}"
        target = spec["tcpSocket"]
        _, writer = await asyncio.wait_for(asyncio.open_connection(target.get("host") or address, _port(target["port"], container)), timeout)
        writer.close()
        return ""
    except TimeoutError:
        return "context deadline exceeded"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return str(error)


async def _loop(pod: PodRunner, container: Container, running: Running, kind: str, then: typing.Callable[[bool], typing.Awaitable[bool]]) -> None:
    """Call `then` at each change of the verdict; it returns whether to go on."""
    spec = container.spec[kind]
    await asyncio.sleep(spec.get("initialDelaySeconds", 0))
    good = bad = 0
    while not running.ended:
        reason = await probe(spec, container.spec, running, pod.node.address)
        good, bad = (good + 1, 0) if not reason else (0, bad + 1)
        if reason:
            verb = "errored" if reason.startswith("command timed out") else "failed"
            text = f"{kind.removesuffix('Probe').capitalize()} probe {verb}: {reason}"
            await pod.event("Unhealthy", text, warning=True, container=container)
        if good >= spec.get("successThreshold", 1) and not await then(True):
            return
        if bad >= spec.get("failureThreshold", 3) and not await then(False):
            return
        await asyncio.sleep(spec.get("periodSeconds", 10))


async def watch_probes(pod: PodRunner, container: Container, running: Running) -> None:
    """Startup first; then readiness sets `ready`, and a failed startup or liveness probe ends the container."""

    async def end(kind: str) -> None:
        await pod.event("Killing", f"Container {container.name} failed {kind} probe, will be restarted", container=container)
        await running.stop(pod.pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def started(verdict: bool) -> bool:
        if not verdict:
            await end("startup")
        container.started = verdict
        return False

    async def ready(verdict: bool) -> bool:
        if container.ready != verdict:
            container.ready = verdict
            pod.touch()
        return True

    async def alive(verdict: bool) -> bool:
        if not verdict:
            await end("liveness")
        return verdict

    if container.kind == "initContainers":
        return
    if "startupProbe" in container.spec:
        await _loop(pod, container, running, "startupProbe", started)
    container.started = not running.ended
    if "readinessProbe" not in container.spec:
        container.ready = container.started
    pod.touch()
    if running.ended:
        return
    checks = [(kind, then) for kind, then in (("readinessProbe", ready), ("livenessProbe", alive)) if kind in container.spec]
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*(_loop(pod, container, running, kind, then) for kind, then in checks))
