"""The plan of a training step, made before any process of the run starts.

FSDP's collectives follow from the groups by formula. The rest is found by going through one step in one process that
stands for the first rank, on tensors without storage and groups without peers: at each boundary the layouts are
known and the planner says what is sent; what DTensor inserts inside a module is seen where it would be issued.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from attrs import evolve, frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from shardlang.check.memory import predict
from shardlang.check.model import ModelLayouts
from shardlang.diagnostics import ShardlangError, sl07_launch
from shardlang.dtypes import DTYPES
from shardlang.lower import torch_private, torch_tracing
from shardlang.lower.fsdp_cost import fsdp_traffic
from shardlang.lower.model import Group, LoweredModel, lower_model
from shardlang.lower.placements import device_mesh, ranks_of
from shardlang.plan.plan import Plan
from shardlang.plan.steps import FREE
from shardlang.runtime.activations import Kept, peak
from shardlang.runtime.apply import place
from shardlang.runtime.batch import place_batch
from shardlang.runtime.observe import Observer, Tally, tally
from shardlang.runtime.record import Issued, Recorder, note
from shardlang.runtime.step_faults import step_fault
from shardlang.runtime.train import Loss, training_step
from shardlang.source import Span


@frozen
class StepPlan:
    """The collectives of one training step, by kind and axes, and its memory, as the worst rank sees them.

    ``activations`` are the bytes that the forward pass keeps for the backward pass, ``memory`` those of the whole step
    at its peak.
    """

    collectives: tuple[Tally, ...]
    activations: int
    memory: int

    def to_json(self) -> dict[str, Any]:
        return {
            "collectives": [t.to_json() for t in self.collectives],
            "activations": self.activations,
            "memory": self.memory,
        }

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> StepPlan:
        return StepPlan(tuple(Tally.from_json(t) for t in said["collectives"]), said["activations"], said["memory"])


def plan_step(
    layouts: ModelLayouts, build: Callable[[], nn.Module], batch: Callable[[int], Any], loss: Loss
) -> StepPlan:
    """The plan of a step of the model that ``build`` makes, with batches as the user's ``batch(step)`` makes them.

    Must be called in a process that has no process group. Raises SL0736 where the model, the batch or the loss
    raises: they may need the values of tensors, which there are none of; SL0666 where DTensor does.
    """
    try:
        return _plan_step(layouts, build, batch(0), loss)
    except ShardlangError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise ShardlangError(sl07_launch.step_not_planned(_span(layouts), layouts.model.name, reason)) from error


def _span(layouts: ModelLayouts) -> Span:
    return layouts.model.reference_span or layouts.model.span


def _plan_step(layouts: ModelLayouts, build: Callable[[], nn.Module], batch: Any, loss: Loss) -> StepPlan:
    lowered = evolve(lower_model(layouts), compile=())
    issued, kept = _go_through(lowered, build, batch, loss, _span(layouts))
    if lowered.checkpoint:
        # What a checkpointed module would keep is seen where it keeps it.
        whole = evolve(lowered, checkpoint=())
        _, kept = _go_through(whole, build, batch, loss, _span(layouts), forgetful=lowered.checkpoint)
    issued += [Issued(t.kind, t.axes, t.bytes, t.bytes) for t in fsdp_traffic(lowered)]
    return StepPlan(tally(issued, lowered.mesh), kept.bytes, peak(predict(layouts), kept))


def _go_through(
    lowered: LoweredModel,
    build: Callable[[], nn.Module],
    batch: Any,
    loss: Loss,
    span: Span,
    forgetful: tuple[str, ...] = (),
) -> tuple[list[Issued], Kept]:
    """One step without data: what is sent (but by FSDP), and what the forward pass keeps."""
    mode = torch_tracing.fake_mode()
    with ExitStack() as stack:
        stack.enter_context(_standing_for_all(lowered.mesh.ranks.stop, lowered.mesh.first_rank))
        mesh = device_mesh(lowered.mesh, "cpu")
        ranks_of(mesh)  # read now: under fake tensors they could not be
        stack.enter_context(torch_tracing.strided_sizes_outside_modes())
        stack.enter_context(mode)
        with torch_tracing.truncated_normals_by_inverse():
            module = build()
        place(lowered, module, mesh, _planned, forgetful)
        for group in lowered.groups:
            _compute_as_grouped(group, module)
        for group in lowered.groups:
            own = {*group.shard, *group.replicate}
            keep = [i for i, a in enumerate(lowered.mesh.axes) if a.name in own]
            for parameter in group.parameters:
                _settle_gradient(module.get_parameter(parameter.name), keep)
        empty = tree_map_only(Tensor, mode.from_tensor, batch)
        placed = place_batch(lowered, empty, mesh)
        kept = Kept(module, forgetful)
        with Recorder() as recorder, Observer(lowered.mesh, lowered.mesh.first_rank), kept.watching():
            try:
                training_step(module, placed, loss)
            except ShardlangError:
                raise
            except Exception as error:
                raise ShardlangError(step_fault(error, lowered, module, span)) from error
    return list(recorder.issued), kept


def _compute_as_grouped(group: Group, module: nn.Module) -> None:
    """What FSDP does to a group's dtypes: parameters and arguments come in the one, results in the other."""
    part = module.get_submodule(group.module)
    if group.param_dtype is not None:
        take = _cast(group.param_dtype)
        for parameter in group.parameters:
            held = module.get_parameter(parameter.name)
            placed = nn.Parameter(take(held.detach()), requires_grad=held.requires_grad)
            for name in parameter.names:
                owner, _, last = name.rpartition(".")
                module.get_submodule(owner)._parameters[last] = placed
        part.register_forward_pre_hook(
            lambda _, args, kwargs: tree_map_only(Tensor, take, (args, kwargs)), prepend=True, with_kwargs=True
        )
    if group.output_dtype is not None:
        give = _cast(group.output_dtype)
        part.register_forward_hook(lambda _, __, output: tree_map_only(Tensor, give, output))


def _cast(name: str) -> Callable[[Tensor], Tensor]:
    """Floating values in a dtype, others as they are."""
    dtype = getattr(torch, DTYPES[name].torch_name)
    return lambda t: t.to(dtype) if t.is_floating_point() else t


def _planned(plan: Plan, block: Tensor) -> Tensor:
    """Notes the steps of a plan in the place of taking them."""
    for step in plan.steps:
        if step.kind not in FREE:
            note(step.kind, step.axes, step.bytes_received, step.bytes_sent)
    return block.new_empty(plan.target.local_shape(plan.target.mesh.first_rank))


def _settle_gradient(parameter: Tensor, keep: list[int]) -> None:
    """What FSDP does to a gradient before it takes it: on axes that are not its group's it gets the parameter's layout.

    What FSDP then sends on its own axes is counted by formula, so that the gradient is done with here.
    """

    def settle(p: Tensor) -> None:
        grad = p.grad
        if isinstance(grad, DTensor) and isinstance(p, DTensor):
            pairs = enumerate(zip(grad.placements, p.placements, strict=True))
            wanted = tuple(g if i in keep else w for i, (g, w) in pairs)
            block = torch_private.block_of(grad.redistribute(placements=wanted))
            p.grad = torch_private.dtensor_of(block, torch_private.spec_of(p), requires_grad=False)

    if parameter.requires_grad:
        parameter.register_post_accumulate_grad_hook(settle)


@contextmanager
def _standing_for_all(world: int, rank: int) -> Iterator[None]:
    """A process group of which this process is one rank and the others do not exist."""
    # What it has to say is of gloo, with which the step may never run.
    log = logging.getLogger("torch.distributed.tensor._collective_utils")
    level = log.level
    log.setLevel(logging.ERROR)
    dist.init_process_group("fake", store=torch_private.fake_store(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        log.setLevel(level)
