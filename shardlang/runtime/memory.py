"""Memory of a training step as measured: by the accelerator's allocator, or on a CPU by torch's own tracker."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from shardlang.lower import torch_tracing


class Meter:
    """Measures the peak while it is entered, what the model and its optimizer hold before included."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self._accelerator = device.type != "cpu" and torch.accelerator.is_available()
        self._tracker: MemTracker | None = None
        if not self._accelerator:
            self._tracker = torch_tracing.memory_tracker()
            self._tracker.track_external(module, optimizer)

    def __enter__(self) -> Meter:
        if self._tracker is not None:
            self._tracker.__enter__()
        else:
            torch.accelerator.reset_peak_memory_stats()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tracker is not None:
            self._tracker.__exit__(kind, error, trace)

    def peak(self) -> dict[str, int]:
        """Bytes at the peak: ``peak`` in all and, where torch tells them apart, by what they are for."""
        if self._tracker is None:
            return {
                "peak": torch.accelerator.max_memory_allocated(),
                "reserved": torch.accelerator.max_memory_reserved(),
            }
        snapshot = self._tracker.get_tracker_snapshot("peak")
        found = snapshot.get(torch.device("cpu"), {})
        sizes = {getattr(kind, "value", str(kind)): size for kind, size in found.items()}
        peak = sizes.pop("Total", 0)
        return {"peak": peak, **{name.lower(): size for name, size in sizes.items() if size}}
