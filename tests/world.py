"""A world of ranks for tests: started once, kept alive, given one function after another.

    def body(factor):                       # a module-level function of a test module; runs on every rank
        x = torch.full((2,), dist.get_rank() * factor)
        dist.all_reduce(x)
        return x.tolist()                   # anything that pickles

    def test_sum(world):                    # the fixture of tests/conftest.py: 4 gloo ranks, one world a session
        assert world.run(body, 10) == [[60, 60]] * 4

``run`` returns the results by rank. Where a rank raises, dies, or is not done in time it raises ``WorldError`` with
every rank's own traceback, ends the processes (by their ids) and starts a new world at the next ``run``; so a broken
test costs its neighbours a second and nothing else. ``run(..., expect_death=True)`` gives ``Lost`` for a rank that
died or was late and ``Raised`` for one that raised, instead of raising. Ranks are forked from one process with torch
imported (about 0.3 s a world). The store of the process group lives in the test's own process, as it does under
torchrun, so that it outlives any rank. For other sizes: ``with World(6) as world``. In a body, take device meshes from
``torch_mesh``.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

TIMEOUT = 60.0
"""Seconds that a call may take unless it says otherwise."""


class WorldError(AssertionError):
    """A rank raised, died, or was not done in time; the text has each rank's account."""


@dataclass(frozen=True)
class Lost:
    """Stands for the result of a rank that died or never answered."""

    rank: int
    reason: str


@dataclass(frozen=True)
class Raised:
    """Stands for the result of a rank that raised."""

    rank: int
    type_name: str
    text: str


class World:
    """``size`` ranks on gloo. ``group_timeout`` is that of their default process group, in seconds."""

    def __init__(self, size: int = 4, *, group_timeout: float = 60.0, backend: str = "gloo") -> None:
        self.size = size
        self.group_timeout = group_timeout
        self.backend = backend
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._store: Any = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The process id of each rank; empty before the first ``run``."""
        return [p.pid for p in self._processes]

    def run(
        self, body: Callable[..., Any], *args: Any, timeout: float = TIMEOUT, expect_death: bool = False
    ) -> list[Any]:
        """Calls ``body(*args)`` on every rank and returns what each gave."""
        if not self._processes:
            self._start()
        call = _packed((body.__module__, body.__qualname__, args))
        try:
            for pipe in self._pipes:
                pipe.send_bytes(call)
            results = self._collect(time.monotonic() + timeout)
        except BaseException:  # a test's own time limit: an answer that comes later must not be the next call's
            self.close()
            raise
        bad = [r for r in results if isinstance(r, Lost | Raised)]
        if bad:
            self.close()
        if bad and not expect_death:
            raise WorldError("\n".join(f"rank {r.rank}: {r.text if isinstance(r, Raised) else r.reason}" for r in bad))
        return results

    def kill(self, rank: int) -> None:
        """SIGKILL to one rank."""
        os.kill(self._processes[rank].pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends every rank, by its id."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join(5)
        self._processes, self._pipes, self._store = [], [], None

    def _start(self) -> None:
        import torch.distributed as dist

        context = multiprocessing.get_context("forkserver")
        # torch._dynamo is what placing a model imports on its way: seconds, once here instead of on every rank.
        context.set_forkserver_preload(["torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo", "attrs"])
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, self.size, self._store.port, self.group_timeout, self.backend, theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _collect(self, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < self.size:
            open_pipes = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in results}
            ready = wait(list(open_pipes), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                results.update({rank: Lost(rank, "not done in time") for rank in open_pipes.values()})
            for pipe in ready:
                rank = open_pipes[pipe]  # type: ignore[index]  # wait is typed for any waitable
                try:
                    results[rank] = _unpacked(pipe.recv_bytes())  # type: ignore[union-attr]  # likewise
                except (EOFError, ConnectionResetError):
                    self._processes[rank].join(1)
                    results[rank] = Lost(rank, f"died with exit code {self._processes[rank].exitcode}")
        return [results[rank] for rank in range(self.size)]


def torch_mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """For bodies: a ``DeviceMesh``, one a rank and shape. Each new one makes gloo groups, whose threads never end."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    key = (dist.group.WORLD, sizes, names)
    if key not in _meshes:
        _meshes[key] = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    return _meshes[key]


_meshes: dict[Any, Any] = {}


def _packed(value: Any) -> bytes:
    """Bytes of anything. A pipe's own ``send`` would hand tensors over as shared files, a descriptor each."""
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(data), weights_only=False)


def _serve(rank: int, size: int, port: int, group_timeout: float, backend: str, pipe: Connection) -> None:
    """The life of a rank: joins the group, then calls what it is sent until the pipe closes."""
    import importlib

    import torch
    import torch.distributed as dist

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(
        GLOO_SOCKET_IFNAME="lo", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )  # fmt: skip
    torch.set_num_threads(1)
    span = timedelta(seconds=group_timeout)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=span)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=span)
    while True:
        try:
            module, name, args = _unpacked(pipe.recv_bytes())
        except EOFError:
            os._exit(0)
        try:
            body: Any = importlib.import_module(module)
            for part in name.split("."):
                body = getattr(body, part)
            result = body(*args)
        except BaseException as error:
            result = Raised(rank, type(error).__name__, traceback.format_exc())
        pipe.send_bytes(_packed(result))
