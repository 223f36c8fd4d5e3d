"""The stage reporter against worker classes that look like vLLM's."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.engine import logs

FOLDER = Path(__file__).parents[3] / "roles/ray_cluster/files/stage_reporter"


class Tensor:
    """Enough of a torch tensor: an address, a number of elements, a storage."""

    def __init__(self, at: int, elements: int, size: int = 4) -> None:
        self._at, self._elements, self._size = at, elements, size

    def data_ptr(self) -> int:
        return self._at

    def numel(self) -> int:
        return self._elements

    def element_size(self) -> int:
        return self._size

    def untyped_storage(self) -> Tensor:
        return self

    def nbytes(self) -> int:
        return self._elements * self._size


class Layer: ...


class PPMissingLayer: ...


class ModuleList(list[Any]): ...


class Model:
    def __init__(self, *stacks: ModuleList) -> None:
        self._stacks = stacks

    def modules(self) -> list[Any]:
        return [self, *self._stacks]

    def parameters(self) -> list[Tensor]:
        return [Tensor(1, 100), Tensor(2, 50, 2), Tensor(1, 100)]  # the last one is tied to the first

    def buffers(self) -> list[Tensor]:
        return [Tensor(3, 10)]


class WorkerBase:
    """The real one has no load_model either that does something: subclasses do."""

    def __init__(self, config: Any, *, local_rank: int, rank: int) -> None:
        self.local_rank, self.rank = local_rank, rank
        self.parallel_config = types.SimpleNamespace(world_size=3, assigned_physical_gpu_ids=config)
        self.cache_config = types.SimpleNamespace(block_size=16)
        self.model_config = types.SimpleNamespace(hf_text_config=types.SimpleNamespace(num_hidden_layers=4))
        self.device: str | None = None
        self.model_runner: Any = None


class Worker(WorkerBase):
    loads = 0

    def load_model(self, *, load_dummy_weights: bool = False) -> str:
        self.loads += 1
        self.device = "cuda:0"
        stack = ModuleList([PPMissingLayer(), Layer(), Layer(), PPMissingLayer()])
        tower = ModuleList([Layer() for _ in range(9)])
        self.model_runner = types.SimpleNamespace(
            get_model=lambda: Model(tower, stack), model_memory_usage=12345, kv_caches=[Tensor(7, 8), [Tensor(7, 8), Tensor(9, 2)]])
        return "loaded"

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        assert self.model_runner


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, in a process that has a vLLM of our making."""
    base = type("WorkerBase", (WorkerBase,), {})
    groups = types.SimpleNamespace(
        get_pp_group=lambda: types.SimpleNamespace(rank_in_group=1), get_tp_group=lambda: types.SimpleNamespace(rank_in_group=0))
    packages: dict[str, dict[str, Any]] = {"vllm": {}, "vllm.distributed": {"parallel_state": groups}, "vllm.v1": {}, "vllm.v1.worker": {},
                                           "vllm.v1.worker.worker_base": {"WorkerBase": base}}
    for name, members in packages.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=enP7s7")
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.10")
    monkeypatch.setenv("MOTLEY_SECRET", "do not tell")
    spec = importlib.util.spec_from_file_location("motley_stage_reporter", FOLDER / "motley_stage_reporter.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["base"] = base
    yield module


def worker_of(reporter: Any, table: list[int] | None = None) -> Any:
    kind = type("GPUWorker", (reporter.base,), {
        name: getattr(Worker, name) for name in ("load_model", "initialize_from_config", "loads")})
    return kind(table, local_rank=0, rank=1)


def test_each_rank_reports_after_load_and_after_its_kv_cache(reporter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    reporter.register()
    worker = worker_of(reporter)
    assert worker.load_model(load_dummy_weights=False) == "loaded"
    worker.initialize_from_config(types.SimpleNamespace(num_blocks=13))
    stage = logs.stages(capfd.readouterr().err)[1]
    assert (stage.pp_rank, stage.layers, stage.world_size) == (1, (1, 2, 2), 3)
    assert (stage.parameters, stage.weight_bytes, stage.load_bytes) == (160, 540, 12345)
    assert (stage.kv_blocks, stage.kv_bytes, stage.kv_tokens) == (13, 40, 208)
    assert stage.host_ip == "10.0.0.10"
    assert stage.env == {"NCCL_SOCKET_IFNAME": "=enP7s7", "VLLM_HOST_IP": "10.0.0.10"}


def test_a_line_is_one_word(reporter: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "a b")
    reporter.register()
    worker_of(reporter).load_model()
    line = capfd.readouterr().err.strip()
    assert line.startswith("MOTLEY_STAGE{") and len(line.split()) == 1
    assert logs.stages(line)[1].env["NCCL_DEBUG"] == "a b"


def test_the_physical_device_comes_from_the_engines_table(reporter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    reporter.register()
    worker_of(reporter, [5, 6]).load_model()
    assert logs.stages(capfd.readouterr().err)[1].device_index == 5


def test_registering_twice_reports_once(reporter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    reporter.register()
    reporter.register()
    worker = worker_of(reporter)
    worker.load_model()
    assert worker.loads == 1
    assert capfd.readouterr().err.count("MOTLEY_STAGE{") == 1


def test_a_report_that_fails_does_not_stop_the_engine(reporter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    reporter.register()
    worker = worker_of(reporter)
    worker.model_config = None
    assert worker.load_model() == "loaded"
    assert logs.stage_errors(capfd.readouterr().err)[0].startswith("load_model: AttributeError")


def test_an_engine_without_the_class_is_left_alone(reporter: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.worker_base", None)
    reporter.register()
    assert logs.stage_errors(capfd.readouterr().err)[0].startswith("register: ")


def test_the_folder_is_found_as_a_plugin_in_the_layout_of_a_configmap(tmp_path: Path) -> None:
    """A mounted ConfigMap is a folder of links into ..data, which links to a folder with a time stamp."""
    real = tmp_path / "..2026_11_30"
    for file in FOLDER.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            target = real / file.relative_to(FOLDER)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.read_text())
    (tmp_path / "..data").symlink_to(real.name)
    for entry in real.iterdir():
        (tmp_path / entry.name).symlink_to(f"..data/{entry.name}")
    found = [e for d in importlib.metadata.distributions(path=[str(tmp_path)]) for e in d.entry_points]
    assert [(e.group, e.name, e.value) for e in found] == [
        ("vllm.general_plugins", "motley_stage_reporter", "motley_stage_reporter:register")]
