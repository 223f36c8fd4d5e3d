# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet's HTTP: token, logs and exec in the form that the API server expects."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest

from .bed import IMAGE, Bed, needs_bwrap, run

pytestmark = needs_bwrap
aiohttp = pytest.importorskip("aiohttp")


async def _client(here: Bed) -> Any:
    from aiohttp.test_utils import TestClient, TestServer
    from motley_lab.kubelet.server import Server

    client = TestClient(TestServer(Server("secret", here.kubelet.find).app), headers={"Authorization": "Bearer secret"})
    await client.start_server()
    return client


async def execute(client: Any, command: list[str], *, stdin: bytes | None = None, flags: str = "stdout=true&stderr=true") -> tuple[bytes, bytes, dict[str, Any]]:
    query = "&".join([flags, *(f"command={word}" for word in command)] + (["stdin=true"] if stdin is not None else []))
    out, err, status = b"", b"", dict[str, Any]()
    async with client.ws_connect(f"/exec/t/p/m?{query}", protocols=("v5.channel.k8s.io", "v4.channel.k8s.io")) as socket:
        assert socket.protocol == "v5.channel.k8s.io"
        if stdin is not None:
            await socket.send_bytes(b"\x00" + stdin)
            await socket.send_bytes(b"\xff\x00")
        async for message in socket:
            channel, data = message.data[0], message.data[1:]
            out, err = out + (data if channel == 1 else b""), err + (data if channel == 2 else b"")
            status = json.loads(data) if channel == 3 else status
        assert socket.close_code == 1000
    return out, err, status


def test_logs_and_exec(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        client = await _client(here)
        await here.create("p", {"containers": [{"name": "m", "image": IMAGE, "env": [{"name": "X", "value": "inside"}], "workingDir": "/tmp",
                                                "command": ["/bin/sh", "-c", "echo one; echo two >&2; printf three; sleep 600"]}],
                                "terminationGracePeriodSeconds": 0})  # fmt: skip
        await here.phase("p", "Running")
        await asyncio.sleep(0.3)
        async with client.get("/containerLogs/t/p/m", headers={"Authorization": "Bearer other"}) as answer:
            assert answer.status == 401
        async with client.get("/containerLogs/t/p/m?tailLines=1&timestamps=true") as answer:
            text = await answer.text()
            assert text.endswith("Z two\n") and text.count("\n") == 1
        async with client.get("/containerLogs/t/p/none") as answer:
            assert (answer.status, await answer.text()) == (404, 'container "none" in pod "p" not found')
        async with client.get("/containerLogs/t/p/m?previous=true") as answer:
            assert (answer.status, await answer.text()) == (400, 'previous terminated container "m" in pod "p" not found')
        assert await execute(client, ["sh", "-c", "echo $X $PWD; echo err >%262; exit 7"]) == (b"inside /tmp\n", b"err\n", {
            "metadata": {}, "status": "Failure", "message": "command terminated with non-zero exit code: exit status 7", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}})
        assert await execute(client, ["cat"], stdin=b"a\nb") == (b"a\nb", b"", {"metadata": {}, "status": "Success"})
        out, _, status = await execute(client, ["sh", "-c", "test -t 1 %26%26 stty size"], flags="stdout=true&tty=true&stdin=true")
        assert status["status"] == "Success" and out.strip() == b"0 0"
        follow = asyncio.create_task(_text(client, "/containerLogs/t/p/m?follow=true"))
        await asyncio.sleep(0.3)
        assert not follow.done()
        await here.api.request("DELETE", "/api/v1/namespaces/t/pods/p")
        assert sorted((await asyncio.wait_for(follow, 10)).splitlines()) == ["one", "three", "two"]
        await client.close()

    run(tmp_path, body)


async def _text(client: Any, path: str) -> str:
    async with client.get(path) as answer:
        found: str = await answer.text()
        return found


def test_a_client_that_goes_away_ends_its_command(tmp_path: pathlib.Path) -> None:
    async def body(here: Bed) -> None:
        client = await _client(here)
        await here.create("p", {"containers": [{"name": "m", "image": IMAGE, "command": ["sleep", "600"]}], "terminationGracePeriodSeconds": 0})
        await here.phase("p", "Running")
        async with client.ws_connect("/exec/t/p/m?command=sleep&command=654&stdout=true", protocols=("v4.channel.k8s.io",)):
            await asyncio.sleep(0.3)
        for _ in range(60):
            out, _, _ = await execute(client, ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
            if b"sleep 654" not in out:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(out)
        await client.close()

    run(tmp_path, body)
