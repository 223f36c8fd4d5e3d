# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`ray` and `vllm` of the stub engine: real processes per node and rank, Ray's HTTP and vLLM's, no model. Standard library only.

`stub.py ray start` runs a node: the head serves the Jobs and State API and starts jobs; every node asks it for ranks to start.
`stub.py vllm serve` is such a job: it places ranks as executor V2 does (engine node first), waits for them, answers the OpenAI API.
`stub.py rank` is one rank: it says what it holds and burns CPU time when the engine tells it to.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import importlib.util
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
import urllib.error
import urllib.request
import uuid

if __name__ == "__main__":  # a script in a container: the meter lies in its own folder
    sys.path += ["/opt/lab-device", str(pathlib.Path(__file__).resolve().parents[1] / "device")]
    sys.modules["motley_lab.device.meter"] = __import__("meter")
from motley_lab.device.meter import Meter, devices

JSON = dict[str, typing.Any]
Answer = typing.Callable[[str, str, JSON, str], tuple[int, typing.Any]]
RAY, VLLM, GIB, LOST = "2.60.0", "0.32.0", 2**30, 8.0
PACE, WORK = 0.004, 0.0005  # seconds that a token takes, and CPU seconds that it costs each rank
OPEN = ("/", "/api/gcs_healthz", "/api/local_raylet_healthz", "/api/authentication_mode")


def token() -> str:
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    return os.environ.get("RAY_AUTH_TOKEN") or (pathlib.Path(path).read_text().strip() if path else "")


def call(address: str, path: str, body: JSON | None = None) -> typing.Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", data, {"Authorization": f"Bearer {token()}"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read())


class Handler(http.server.BaseHTTPRequestHandler):
    """`self.server.answer(method, path, body, authorization)` gives the status and JSON, text, or lines to stream."""

    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        answer: Answer = self.server.answer  # type: ignore[attr-defined]
        status, found = answer(self.command, self.path.partition("?")[0], body, self.headers.get("Authorization") or "")
        stream = not isinstance(found, (dict, list, str))
        data = b"" if stream else (found if isinstance(found, str) else json.dumps(found)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if stream else "text/plain" if isinstance(found, str) else "application/json")
        self.send_header(*(("Connection", "close") if stream else ("Content-Length", str(len(data)))))
        self.end_headers()
        self.wfile.write(data)
        for line in found if stream else ():
            self.wfile.write(f"data: {line}\n\n".encode())
        self.close_connection = self.close_connection or stream

    do_GET = do_POST = do_DELETE = _serve

    def log_message(self, *_: typing.Any) -> None:
        pass


def listen(address: str, port: int, answer: Answer) -> http.server.ThreadingHTTPServer:
    server = http.server.ThreadingHTTPServer((address, port), Handler)
    server.answer = answer  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


# -- ray -------------------------------------------------------------------------------------------------------------------


class Head:
    """Nodes, jobs and actors (one for each rank) of the cluster, and the HTTP that shows them."""

    def __init__(self, gcs: str) -> None:
        self.gcs, self.lock = gcs, threading.RLock()
        self.nodes: dict[str, JSON] = {}
        self.jobs: dict[str, JSON] = {}
        self.actors: dict[str, JSON] = {}
        self.logs: dict[str, list[str]] = {}

    def answer(self, method: str, path: str, body: JSON, authorization: str) -> tuple[int, typing.Any]:
        if path in OPEN:
            return 200, "success"
        if os.environ.get("RAY_AUTH_MODE") == "token" and authorization != f"Bearer {token()}":
            return (403, "Forbidden: Invalid authentication token") if authorization else (401, "Unauthorized: Missing authentication token")
        with self.lock:
            return self._route(method, path.strip("/").split("/"), body)

    def _route(self, method: str, path: list[str], body: JSON) -> tuple[int, typing.Any]:
        tables = {"nodes": self.nodes, "actors": self.actors, "jobs": self.jobs}
        match path:
            case ["api", "v0", kind] if kind in tables:
                rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in tables[kind].values()]
                return 200, {"result": True, "msg": "", "data": {"result": {"total": len(rows), "num_filtered": len(rows), "result": rows}}}
            case ["api", "version"]:
                return 200, {"version": "4", "ray_version": RAY, "ray_commit": "stub", "session_name": "stub"}
            case ["api", "jobs"]:
                return self._submit(body) if method == "POST" else (200, list(self.jobs.values()))
            case ["api", "jobs", name, *rest] if name in self.jobs:
                job = self.jobs[name]
                if rest == ["stop"] and (active := job["status"] == "RUNNING"):
                    self._end(job, "STOPPED", "Job was intentionally stopped.")
                    return 200, {"stopped": active}
                return 200, {"logs": "".join(self.logs[name])} if rest == ["logs"] else {"stopped": False} if rest else job
            case ["stub", "node"]:  # a node reports itself and takes the ranks that it shall start
                self.nodes.setdefault(body["node_id"], body)["_seen"] = time.monotonic()
                for actor_id in body["_ended"]:
                    self.actors[actor_id]["_seen"] = -math.inf
                waiting = [a for a in self.actors.values() if a["node_id"] == body["node_id"] and not a["_begun"] and a["state"] != "DEAD"]
                for actor in waiting:
                    actor["_begun"] = True
                return 200, {"ranks": [actor["_spec"] for actor in waiting]}
            case ["stub", "place"]:
                for spec in body["ranks"]:
                    self.actors[spec["actor_id"]] = {
                        "actor_id": spec["actor_id"], "class_name": "RayWorkerProc", "name": spec["name"], "state": "PENDING_CREATION", "pid": None,
                        "node_id": spec["node_id"], "job_id": spec["job"], "_spec": spec, "_begun": False, "_tokens": 0, "_seen": time.monotonic(),
                    }  # fmt: skip
                return 200, {}
            case ["stub", "work"]:
                mine = [actor for actor in self.actors.values() if actor["job_id"] == body["job"]]
                for actor in mine:
                    actor["_tokens"], actor["_blocks"] = actor["_tokens"] + body.get("tokens", 0), body.get("blocks", actor.get("_blocks"))
                return 200, {"rooms": [actor.get("_room") for actor in mine]}
            case ["stub", "rank", actor_id]:  # a rank reports itself and takes its work
                return self._rank(self.actors[actor_id], body)
        return 404, f"{method} /{'/'.join(path)} not found"

    def _rank(self, actor: JSON, body: JSON) -> tuple[int, typing.Any]:
        if actor["state"] == "DEAD":
            return 410, "killed"
        node = self.nodes[actor["node_id"]]
        where = "" if node["is_head_node"] else f", ip={node['node_ip']}"
        self.logs[actor["job_id"]] += [f"\x1b[36m(RayWorkerProc pid={body['pid']}{where})\x1b[0m {line}\n" for line in body["lines"]]
        actor |= {"pid": body["pid"], "state": "ALIVE", "_room": body["room"], "_seen": time.monotonic()}
        tokens, actor["_tokens"] = actor["_tokens"], 0
        # Between nodes hidden states and residual cross the link, as a real engine's would.
        activations = "" if node["is_head_node"] else "x" * (tokens * 2 * 4 * actor["_spec"]["config"]["hidden_size"])
        return 200, {"tokens": tokens, "blocks": actor.get("_blocks"), "activations": activations}

    def _submit(self, body: JSON) -> tuple[int, typing.Any]:
        name = body.get("submission_id") or f"raysubmit_{uuid.uuid4().hex[:16]}"
        if name in self.jobs:
            return 500, f"ValueError: Job with submission_id {name} already exists. Please use a different submission_id."
        environment = {**os.environ, **(body.get("runtime_env") or {}).get("env_vars", {}), "MOTLEY_STUB": f"{self.gcs} {name}"}
        process = subprocess.Popen(body["entrypoint"], shell=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   start_new_session=True)  # fmt: skip
        head = next(node for node in self.nodes.values() if node["is_head_node"])
        self.jobs[name] = {
            "type": "SUBMISSION", "job_id": name, "submission_id": name, "status": "RUNNING", "message": "Job is currently running.",
            "entrypoint": body["entrypoint"], "metadata": body.get("metadata") or {}, "runtime_env": body.get("runtime_env") or {},
            "start_time": int(time.time() * 1000), "end_time": None, "driver_node_id": head["node_id"], "driver_exit_code": None,
            "driver_info": {"id": name, "pid": str(process.pid), "node_ip_address": head["node_ip"]},
        }  # fmt: skip
        self.logs[name] = []
        threading.Thread(target=self._follow, args=(self.jobs[name], process), daemon=True).start()
        return 200, {"job_id": name, "submission_id": name}

    def _follow(self, job: JSON, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.logs[job["job_id"]].append(line)
        code = job["driver_exit_code"] = process.wait()
        tail = "".join(self.logs[job["job_id"]][-20:])
        with self.lock:
            if job["status"] == "RUNNING":
                text = f"Job entrypoint command failed with exit code {code}, last available logs (truncated to 20,000 chars):\n{tail}"
                self._end(job, *(("FAILED", text) if code else ("SUCCEEDED", "Job finished successfully.")))

    def _end(self, job: JSON, status: str, message: str) -> None:
        job |= {"status": status, "message": message, "end_time": int(time.time() * 1000)}
        for actor in self.actors.values():
            actor["state"] = "DEAD" if actor["job_id"] == job["job_id"] else actor["state"]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(job["driver_info"]["pid"]), signal.SIGTERM)

    def look(self) -> None:
        """A node or rank that is no longer heard of is dead; a dead rank ends its engine."""
        with self.lock:
            for row in [*self.nodes.values(), *self.actors.values()]:
                if row["state"] != "DEAD" and time.monotonic() - row["_seen"] > LOST:
                    row["state"] = "DEAD"
                    job = self.jobs.get(row.get("job_id", ""))
                    if job and job["status"] == "RUNNING":
                        self.logs[job["job_id"]].append(f"ERROR RayWorkerProc {row['name']} died unexpectedly, shutting down executor.\n")
                        os.killpg(int(job["driver_info"]["pid"]), signal.SIGABRT)


def ray(arguments: list[str]) -> int:
    if arguments[:1] != ["start"]:
        sys.stdout.write(f"ray, version {RAY}\n" if arguments == ["--version"] else "the lab's stub engine has `ray start` alone\n")
        return 0 if arguments == ["--version"] else 2
    parser = argparse.ArgumentParser(prog="ray start")
    for name, default in (("--port", "6379"), ("--address", ""), ("--node-ip-address", "127.0.0.1"), ("--node-name", ""), ("--num-gpus", "0"),
                          ("--dashboard-port", "8265"), ("--dashboard-agent-listen-port", "52365")):  # fmt: skip
        parser.add_argument(name, default=default)
    parser.add_argument("--head", action="store_true")
    options, _ = parser.parse_known_args(arguments[1:])
    address, head = options.node_ip_address, None
    gcs = f"{address}:{options.port}" if options.head else options.address
    if options.head:
        head = Head(gcs)
        listen(address, int(options.port), head.answer)
        listen("127.0.0.1", int(options.dashboard_port), head.answer)
    listen(address, int(options.dashboard_agent_listen_port), lambda *_: (200, "success"))
    facts = {"node_id": uuid.uuid4().hex + uuid.uuid4().hex[:24], "node_ip": address, "node_name": options.node_name or address, "state": "ALIVE",
             "is_head_node": options.head, "resources_total": {"GPU": float(options.num_gpus)}, "_ended": list[str]()}  # fmt: skip
    sys.stdout.write(f"Local node IP: {address}\nRay runtime started.\n")
    sys.stdout.flush()
    ranks: dict[str, subprocess.Popen[bytes]] = {}
    heard = time.monotonic()
    while True:
        try:
            for spec in call(gcs, "/stub/node", facts)["ranks"]:
                # Executor V2 fills gaps of the node's own environment with the engine's.
                environment = {**spec["env"], **os.environ, "MOTLEY_STUB": gcs, "MOTLEY_STUB_RANK": json.dumps(spec)}
                ranks[spec["actor_id"]] = subprocess.Popen([sys.executable, __file__, "rank"], env=environment)
            heard = time.monotonic()
        except OSError as error:
            if time.monotonic() - heard > 2 * LOST or getattr(error, "code", 0) in (401, 403):
                sys.stderr.write(f"Failed to register with the GCS at {gcs}: {error}\n")
                return 1
        facts["_ended"] = [actor_id for actor_id, process in ranks.items() if process.poll() is not None]
        if head:
            head.look()
        time.sleep(0.1)


# -- vllm ------------------------------------------------------------------------------------------------------------------


def partition(text: str | None, *, layers: int, stages: int) -> list[int]:
    """Layers per stage: the variable, or vLLM's own split, whose remainder goes to the stages before the last, from the back."""
    if text is None:
        return [layers // stages + (stages - 1 - layers % stages <= stage < stages - 1) for stage in range(stages)]
    try:
        made = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"Invalid partition string: {text}") from None
    if len(made) != stages:
        raise ValueError(f"len(partitions)={len(made)} does not match pp_size={stages}.")
    if sum(made) != layers:
        raise ValueError(f"sum(partitions)={sum(made)} does not match num_hidden_layers={layers}.")
    return made


def weight_bytes(config: JSON, *, layers: int, first: bool, last: bool, tensor: int) -> int:
    """What a stage of a Llama in float32 holds: its layers, the embedding, norm and head, the rope cache."""
    hidden, heads, inner = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    size, kv = config.get("head_dim") or hidden // heads, config.get("num_key_value_heads", heads)
    layer = (2 * hidden * heads * size + 2 * hidden * kv * size + 3 * hidden * inner) // tensor + 2 * hidden
    table = config["vocab_size"] * hidden // tensor
    return 4 * (layers * layer + first * table + last * (table + hidden) + config["max_position_embeddings"] * size)


def rank() -> int:
    """One worker: its two reports, its memory on its device, and work on demand, until the head no longer wants it."""
    spec, gcs = json.loads(os.environ["MOTLEY_STUB_RANK"]), os.environ["MOTLEY_STUB"]
    config, index, tensor, stages = spec["config"], spec["device"], spec["tensor"], spec["stages"]
    stage, lines, seen = spec["rank"] // tensor, list[str](), devices()
    parts = partition(os.environ.get("VLLM_PP_LAYER_PARTITION"), layers=config["num_hidden_layers"], stages=stages)
    held = weight_bytes(config, layers=parts[stage], first=stage == 0, last=stage == stages - 1, tensor=tensor)
    total, kept = (int((os.environ.get(f"MOTLEY_LAB_{word}_BYTES") or "0").split(",")[index]) for word in ("DEVICE", "OVERHEAD"))
    block = 2 * max(1, config["num_key_value_heads"] // tensor) * config["head_dim"] * 4 * spec["block_size"] * parts[stage]
    room = math.ceil(total * spec["fraction"]) - held - kept
    gauge = Meter(seen[index]["uuid"] if index < len(seen) else "none", f"VLLM::Worker_PP{stage}")
    gauge.memory = held + kept
    first, owed = sum(parts[:stage]), 0.0
    report = {
        "schema": 1, "event": "load", "time": round(time.time(), 3), "rank": spec["rank"], "local_rank": spec["local_rank"],
        "world_size": stages * tensor, "pp_rank": stage, "tp_rank": spec["rank"] % tensor, "node": socket.gethostname(),
        "host_ip": os.environ.get("VLLM_HOST_IP"), "pid": os.getpid(), "device": "cpu", "physical_device": index,
        "layers": [first, first + parts[stage] - 1, parts[stage]], "params": held // 4, "weight_bytes": held, "load_bytes": held,
        "env": {key: value for key, value in sorted(os.environ.items()) if key.startswith(("NCCL_", "GLOO_")) or key in (
            "VLLM_HOST_IP", "VLLM_PP_LAYER_PARTITION", "CUDA_VISIBLE_DEVICES")},
    }  # fmt: skip
    who, mounted, blocks = f"(Worker_PP{stage} pid={os.getpid()}) INFO", importlib.util.find_spec("motley_stage_reporter") is not None, None

    def say(entry: JSON) -> None:
        if mounted:  # as the real one: a vLLM plugin that is there only if its folder is on PYTHONPATH
            lines.append("MOTLEY_STAGE" + json.dumps(entry, separators=(",", ":")).replace(" ", "\\u0020"))

    say(report)
    for text in (f"Model loading took {held / GIB:.4f} GiB memory and 0.100000 seconds", f"Available KV cache memory: {room / GIB:.4f} GiB"):
        lines.append(f"{who} {time.strftime('%m-%d %H:%M:%S')} [worker.py:81] {text}")
    while True:
        try:
            order = call(gcs, f"/stub/rank/{spec['actor_id']}", {"pid": os.getpid(), "lines": lines, "room": room // block})
        except OSError:
            return 1
        lines.clear()
        if order["blocks"] and blocks is None:
            blocks = order["blocks"]
            gauge.memory += blocks * block
            say(report | {"event": "kv", "kv_blocks": blocks, "kv_bytes": blocks * block, "block_size": spec["block_size"]})
        owed = min(owed + order["tokens"] * WORK, 2.0)
        work = min(owed, 0.2)  # a rank that is silent for long counts as lost
        owed, end = owed - work, time.process_time() + work
        with gauge.busy():
            while time.process_time() < end:
                pass
        time.sleep(0.1)


class Engine:
    """`vllm serve`: places the ranks, waits for them, answers."""

    def __init__(self, arguments: list[str]) -> None:
        parser = argparse.ArgumentParser(prog="vllm serve")
        for name, kind, default in (
            ("--port", int, 8000), ("--pipeline-parallel-size", int, 1), ("--tensor-parallel-size", int, 1), ("--max-model-len", int, 0),
            ("--gpu-memory-utilization", float, 0.92), ("--block-size", int, 128), ("--served-model-name", str, ""),
        ):  # fmt: skip
            parser.add_argument(name, type=kind, default=default)
        self.options, rest = parser.parse_known_args(arguments[2:])
        self.model, (self.gcs, self.job) = arguments[1], os.environ["MOTLEY_STUB"].split()
        self.name, self.key = self.options.served_model_name or self.model, os.environ.get("VLLM_API_KEY")
        self.count, self.running, self.lock = dict.fromkeys(("prompt", "generation", "success"), 0), 0, threading.Lock()
        folder, hub = pathlib.Path(self.model), os.environ.get("HF_ENDPOINT", "")
        where = folder / "config.json" if folder.is_dir() else None
        self.config: JSON = json.loads(where.read_text()) if where else call(hub.removeprefix("http://"), f"/{self.model}/resolve/main/config.json")
        self.length = self.options.max_model_len or self.config["max_position_embeddings"]

    def log(self, text: str) -> None:
        sys.stdout.write(f"(EngineCore pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [stub.py:1] {text}\n")
        sys.stdout.flush()

    def place(self) -> None:
        """One rank per GPU: the engine node's first, then the other nodes by id, as executor V2 sorts its bundles."""
        stages, tensor = self.options.pipeline_parallel_size, self.options.tensor_parallel_size
        nodes = [row for row in call(self.gcs, "/api/v0/nodes")["data"]["result"]["result"] if row["state"] == "ALIVE"]
        slots = [(node["node_id"], index) for node in sorted(nodes, key=lambda node: (not node["is_head_node"], node["node_id"]))
                 for index in range(int(node["resources_total"]["GPU"]))]  # fmt: skip
        if len(slots) < stages * tensor:
            raise ValueError(f"Cannot provide a placement group requiring {stages * tensor} GPUs: the cluster has {len(slots)}.")
        partition(os.environ.get("VLLM_PP_LAYER_PARTITION"), layers=self.config["num_hidden_layers"], stages=stages)
        call(self.gcs, "/stub/place", {"ranks": [
            {"actor_id": uuid.uuid4().hex, "node_id": node, "job": self.job, "rank": rank, "device": index, "local_rank": index, "stages": stages,
             "name": f"vllm_Worker_{self.job}" + f"_TP{rank % tensor}" * (tensor > 1) + f"_PP{rank // tensor}" * (stages > 1), "tensor": tensor,
             "config": self.config, "fraction": self.options.gpu_memory_utilization, "block_size": self.options.block_size, "env": dict(os.environ)}
            for rank, (node, index) in enumerate(slots[: stages * tensor])]})  # fmt: skip
        rooms: list[int | None] = [None]
        while None in rooms:
            time.sleep(0.1)
            rooms = call(self.gcs, "/stub/work", {"job": self.job})["rooms"]
        blocks = min(room for room in rooms if room is not None)
        if blocks * self.options.block_size < self.length:
            raise ValueError(f"To serve at least one request with the model's max seq len ({self.length}), the KV cache is too small.")
        call(self.gcs, "/stub/work", {"job": self.job, "blocks": blocks})
        tokens = blocks * self.options.block_size
        self.log(f"CPU KV cache size: {tokens:,} tokens, Maximum concurrency for {self.length:,} tokens per request: {tokens / self.length:.2f}x")

    def answer(self, method: str, path: str, body: JSON, authorization: str) -> tuple[int, typing.Any]:
        if path == "/health":
            return 200, ""
        if path == "/metrics":
            rows = {"num_requests_running": self.running, "num_requests_waiting": 0, "kv_cache_usage_perc": 0, "num_preemptions_total": 0,
                    **{f"{key}_tokens_total": self.count[key] for key in ("prompt", "generation")}}  # fmt: skip
            return 200, "".join(f'vllm:{key}{{engine="0",model_name="{self.name}"}} {float(value)}\n' for key, value in rows.items())
        if path.startswith("/v1") and self.key and authorization != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        if path == "/v1/models":
            card = {"id": self.name, "object": "model", "created": 0, "owned_by": "vllm", "root": self.model, "max_model_len": self.length}
            return 200, {"object": "list", "data": [card]}
        if path not in ("/v1/completions", "/v1/chat/completions") or method != "POST":
            return 404, {"detail": "Not Found"}
        if body.get("model", self.name) != self.name:
            text = f"The model `{body['model']}` does not exist."
            return 404, {"error": {"message": text, "type": "NotFoundError", "param": "model", "code": 404}}
        return self._complete(body, chat="chat" in path)

    def _complete(self, body: JSON, *, chat: bool) -> tuple[int, typing.Any]:
        given = body.get("messages") if chat else body.get("prompt", "")
        size = len(given) if isinstance(given, list) and not chat else len(json.dumps(given)) // 3
        count = body.get("max_completion_tokens") or body.get("max_tokens") or (self.length - size if chat else 16)
        if size + count > self.length:
            text = f"This model's maximum context length is {self.length} tokens, the prompt has {size}, and {count} output tokens were asked for."
            return 400, {"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}}
        usage = {"prompt_tokens": size, "completion_tokens": count, "total_tokens": size + count}
        base = {"id": f"cmpl-{uuid.uuid4().hex[:16]}", "created": int(time.time()), "model": self.name}
        kind = ("chat.completion" if chat else "text_completion") + (".chunk" if chat and body.get("stream") else "")

        def choice(text: str, end: str | None, part: str) -> JSON:
            inner = {part: {"role": "assistant", "content": text}} if chat else {"text": text}
            return {**base, "object": kind, "choices": [{"index": 0, **inner, "logprobs": None, "finish_reason": end}]}

        def stream() -> typing.Iterator[str]:
            for index in range(count):
                self._work(1, size if index == 0 else 0)
                yield json.dumps(choice(f" w{index}", "length" if index == count - 1 else None, "delta"))
            if (body.get("stream_options") or {}).get("include_usage"):
                yield json.dumps({**base, "object": kind, "choices": [], "usage": usage})
            yield "[DONE]"

        if body.get("stream"):
            return 200, stream()
        self._work(count, size)
        return 200, {**choice("".join(f" w{index}" for index in range(count)), "length", "message"), "usage": usage}

    def _work(self, tokens: int, prompt: int) -> None:
        """Every rank spends CPU time on the tokens, and their reader waits for it."""
        with self.lock:
            self.running += 1
            self.count["prompt"] += prompt
            self.count["generation"] += tokens
        call(self.gcs, "/stub/work", {"job": self.job, "tokens": tokens})
        time.sleep(PACE * tokens)
        with self.lock:
            self.running -= 1


def vllm(arguments: list[str]) -> int:
    if arguments[:1] != ["serve"]:
        sys.stdout.write(f"{VLLM}+stub\n" if arguments == ["--version"] else "the lab's stub engine has `vllm serve` alone\n")
        return 0 if arguments == ["--version"] else 2
    engine = Engine(arguments)
    try:
        engine.place()
    except ValueError as error:
        sys.stderr.write(f"(EngineCore pid={os.getpid()}) ERROR ValueError: {error}\nRuntimeError: Engine core initialization failed.\n")
        return 1
    server = listen("0.0.0.0", engine.options.port, engine.answer)
    engine.log(f"Starting vLLM server on http://0.0.0.0:{server.server_port}. Application startup complete.")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit({"ray": ray, "vllm": vllm, "rank": lambda _: rank()}[sys.argv[1]](sys.argv[2:]))
