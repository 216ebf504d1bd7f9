"""A process of ``shardlang run``: one rank, or the one-device reference. Started by ``run``, not by hand.

``python -m shardlang.cli.worker DIRECTORY [--reference]``; the directory has ``task.json`` and takes the results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from shardlang import compilation
from shardlang.check.model import check_model
from shardlang.compilation import Compilation
from shardlang.dtypes import DTYPES
from shardlang.lower.facts import facts_of
from shardlang.lower.placements import device_mesh
from shardlang.runtime import simulate
from shardlang.runtime.applied import applied_to
from shardlang.runtime.apply import apply
from shardlang.runtime.batch import place
from shardlang.runtime.distributed import run_plan
from shardlang.runtime.groups import Team
from shardlang.runtime.launch import account, end_with_parent
from shardlang.runtime.observe import Observer, tally
from shardlang.runtime.record import Recorder
from shardlang.runtime.train import SEED, plain_step, train, training_step
from shardlang.runtime.verify_model import step_beside

PROGRESS = "{who}.progress"
TIMEOUT = 120.0
"""Seconds that a rank waits for another before it gives up; ``SHARDLANG_TIMEOUT`` says otherwise."""


def main() -> None:
    directory = Path(sys.argv[1])
    rank = None if "--reference" in sys.argv else int(os.environ["RANK"])
    end_with_parent()
    try:
        task = json.loads((directory / "task.json").read_text())
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        session = compilation.load(str(directory / "plan.json"))
        if rank is None:
            result = reference(session, task, directory)
        else:
            result = _on_rank(session, task, directory, rank)
        who = "reference" if rank is None else f"rank{rank}"
        (directory / f"{who}.json").write_text(json.dumps(result))
    except BaseException as error:
        account(directory, rank, error)
        # At once: a peer must not see the connection close before the account is there, and nothing is to be tidied.
        os._exit(1)


def _on_rank(session: Compilation, task: dict[str, Any], directory: Path, rank: int) -> dict[str, Any]:
    device = torch.device("cpu")
    if task["device"] != "cpu":
        device = torch.device(task["device"], int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    span = timedelta(seconds=float(os.environ.get("SHARDLANG_TIMEOUT", TIMEOUT)))
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group(backend, timeout=span, device_id=None if device.type == "cpu" else device)
    work = _reshard if task["model"] is None else _verify if task.get("verify") else _train
    result = work(session, task, directory, rank, device)
    dist.barrier()
    dist.destroy_process_group()
    return result


def _train(
    session: Compilation, task: dict[str, Any], directory: Path, rank: int, device: torch.device
) -> dict[str, Any]:
    """Trains on the ranks, as declared."""
    declared = session.program.models[task["model"]]
    module, batch, loss = user_functions(session, task["model"], device)
    placed = apply(declared, module, device_mesh(declared.mesh, device.type))
    applied = applied_to(placed)
    assert applied is not None
    course = train(
        placed,
        lambda number: place(placed, to_device(batch(number), device)),
        loss,
        task["steps"],
        step=training_step,
        observe=lambda: Observer(applied.lowered.mesh, rank),
        progress=_reporter(directory, "ranks") if rank == 0 else lambda _, __: None,
    )
    return course.to_json()


def _verify(
    session: Compilation, task: dict[str, Any], directory: Path, rank: int, device: torch.device
) -> dict[str, Any]:
    """Goes through one step, as declared and as on one device."""
    declared = session.program.models[task["model"]]
    module, batch, loss = user_functions(session, task["model"], device)
    plain, _, _ = user_functions(session, task["model"], device)
    placed = apply(declared, module, device_mesh(declared.mesh, device.type))
    return step_beside(placed, plain, batch(0), loss).to_json()


def reference(session: Compilation, task: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Trains the same on one device, without a word of ours."""
    device = torch.device(task["device"])
    module, batch, loss = user_functions(session, task["model"], device)
    course = train(
        module.to(device),
        lambda number: to_device(batch(number), device),
        loss,
        task["steps"],
        step=plain_step,
        progress=_reporter(directory, "reference"),
    )
    return course.to_json()


def user_functions(
    session: Compilation, name: str, device: torch.device
) -> tuple[nn.Module, Callable[[int], Any], Callable[[nn.Module, Any], tuple[Tensor, Any]]]:
    """The model from the common seed, and the user's ``batch`` and ``loss``."""
    from shardlang.lower.module import import_module_of

    torch.manual_seed(SEED)
    module = session.build(name, device="cpu")
    home: Any = import_module_of(*session.references[name])
    for parameter in check_model(session.program.models[name], facts_of(module)).parameters.values():
        if parameter.frozen:
            module.get_parameter(parameter.name).requires_grad_(False)
    return module, home.batch, home.loss


def to_device(batch: Any, device: torch.device) -> Any:
    return tree_map_only(Tensor, lambda t: t.to(device), batch)


def _reporter(directory: Path, who: str) -> Callable[[int, float], None]:
    """Says to the launcher how far this side is."""
    path = directory / PROGRESS.format(who=who)

    def report(number: int, value: float) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"step": number, "loss": value}) + "\n")

    return report


def _reshard(
    session: Compilation, task: dict[str, Any], directory: Path, rank: int, device: torch.device
) -> dict[str, Any]:
    """Carries out every plan of the file on a known tensor; each result is held against that tensor."""
    results: dict[str, Any] = {}
    for name, plan in session.plans.items():
        dtype = getattr(torch, DTYPES[plan.dtype].torch_name)
        size = plan.source.numel
        value = (torch.arange(size, dtype=torch.int64) * 7919 % 97).reshape(plan.source.shape).to(dtype)
        mine = simulate.shard(value, plan.source, seed=1)[rank].to(device)
        with Recorder() as recorder:
            block = run_plan(plan, mine, team=Team(device.type)).cpu()
        blocks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(blocks, block)
        made = simulate.assemble(dict(enumerate(blocks)), plan.target)
        results[name] = {
            "equal": bool(torch.equal(made, value)),
            "collectives": [t.to_json() for t in tally(recorder.issued, plan.source.mesh)],
        }
    return results


if __name__ == "__main__":
    main()
