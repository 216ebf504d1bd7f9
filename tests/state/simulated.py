"""Checkpoints of many ranks saved and loaded by one process, rank after rank, through the same planners and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from shardlang.layout import Layout
from shardlang.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, read_metadata
from shardlang.runtime.checkpoint_plan import BlockLoadPlanner, BlockSavePlanner
from shardlang.runtime.simulate import shard
from shardlang.runtime.state import Block


def numbered(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, first: int = 1) -> torch.Tensor:
    """A tensor in which every element is another integer."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    return torch.arange(first, first + count).reshape(shape).to(dtype)


def save_all(folder: Path, tensors: dict[str, tuple[torch.Tensor, Layout]], objects: dict[str, Any]) -> None:
    """Saves global tensors under their layouts (all of one mesh), every rank's part in turn."""
    mesh = next(iter(tensors.values()))[1].mesh
    blocks = {key: shard(value, layout) for key, (value, layout) in tensors.items()}
    reports, saved = [], []
    for index, rank in enumerate(mesh.ranks):
        planner, writer = BlockSavePlanner(), CheckpointWriter(folder, index)
        mine = {key: Block(blocks[key][rank], layout, rank) for key, (_, layout) in tensors.items()}
        planner.set_up_planner({**mine, **objects}, is_coordinator=index == 0)
        plan = planner.create_local_plan()
        reports.append((plan, writer.write_data(plan, planner).value()))
        saved.append((planner, writer))
    planner, writer = saved[0]
    _, metadata = planner.create_global_plan([plan for plan, _ in reports])
    writer.finish(metadata, [results for _, results in reports])


def load_rank(folder: Path, layouts: dict[str, tuple[Layout, torch.dtype]], rank: int) -> tuple[dict[str, Any], int]:
    """One rank's blocks under other layouts, and how many bytes of arrays it read."""
    planner, reader = BlockLoadPlanner(), CheckpointReader(folder)
    metadata = read_metadata(folder)
    reader.set_up_storage_reader(metadata, False)
    entries = {k: Block(torch.zeros(v.local_shape(rank), dtype=d), v, rank) for k, (v, d) in layouts.items()}
    planner.set_up_planner(entries, metadata)
    reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner)
    return {k: b.local for k, b in entries.items()}, reader.reader.read
