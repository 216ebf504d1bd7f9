"""Counts the bytes of the storages that are alive, and their peak, on a rank whose transfers are gloo's.

A thread of gloo's lets go of a transfer's tensors only after it has woken the one that waited for them: most often some
microseconds later, milliseconds where the processors are busy. What such a thread alone still holds is nobody's: so
before a new peak is taken down, all of them are given the time to go back to sleep.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WORKER = "pt_gloo_runloop"
"""The name of the threads that carry out gloo's transfers."""
PATIENCE = 5.0
"""Seconds after which a transfer of which no thread lets go is one that is still under way."""


class Alive(TorchDispatchMode):
    """Counts the bytes of all storages that operators make and that are still alive, and their peak.

    The groups on which something is sent meanwhile are made before.
    """

    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self._now = self.peak = given.nbytes
        self._seen = {given.untyped_storage()._cdata}
        self._workers = _workers()

    @property
    def now(self) -> int:
        """Bytes that are alive, once gloo has let go."""
        self._settle()
        return self._now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor):
                self._add(x.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen or not storage.nbytes():
            return
        self._seen.add(key)
        self._now += storage.nbytes()
        weakref.finalize(storage, self._drop, key, storage.nbytes())
        if self._now > self.peak:
            self._settle()
            self.peak = max(self.peak, self._now)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._now -= size

    def _settle(self) -> None:
        """Waits until no thread of gloo has anything to do and nothing more goes, at two looks one after the other."""
        end, quiet = time.monotonic() + PATIENCE, 0
        while quiet < 2 and time.monotonic() < end:
            before = self._now
            time.sleep(0.0005)  # lets go of the interpreter's lock, for which such a thread may be waiting
            quiet = quiet + 1 if self._now == before and not any(map(_runs, self._workers)) else 0


def _workers() -> list[Path]:
    """The threads of this process that carry out gloo's transfers."""
    return [t for t in Path("/proc/self/task").iterdir() if (t / "comm").read_text().strip() == WORKER]


def _runs(task: Path) -> bool:
    """Is a thread at work, or ready for it? (The state stands behind the name, which is in brackets.)"""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it has ended
        return False


@contextmanager
def quick_collections() -> Iterator[None]:
    """Inside, ``gc.collect`` only looks at what was made inside: ranks that have run other tests hold much before."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
