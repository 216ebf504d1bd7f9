"""The law for models that others wrote: those of ``examples/models``, by name, on any mesh."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import shardlang as sl
from shardlang.runtime.batch import place
from shardlang.runtime.global_view import global_view
from shardlang.runtime.loss import global_mean, whole_value
from tests.models.law import Outcome, train_beside

NAMES = ("llama", "qwen3", "gpt2", "bert", "vit", "encoder", "t5", "mixtral")
STEPS = 10


def descent(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Linear in the gradient: AdamW makes a full step of any rounding error where the gradient itself is zero, as that
    of a key's bias is."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def declaration(name: str, mesh: str | None = None) -> str:
    """The text of a model's ``.shard`` file, with another mesh where one is given."""
    text = Path(f"examples/models/{name}.shard").read_text()
    return text if mesh is None else re.sub(r"(?m)^mesh pod = .*$", f"mesh pod = {mesh}", text)


def by_dispatch(text: str) -> str:
    """The declaration with ``eager`` at the end of every ``call`` line: nothing of the model is compiled."""
    plain = re.sub(r" *#.*", "", text)
    return re.sub(r"(?ms)^(  call  .*?)(?=\n\n|\n  [a-z])", r"\1 eager", plain)


def train_real(name: str, mesh: str | None = None, steps: int = STEPS, eager: bool = False) -> Outcome:
    """For bodies: trains the model beside a plain copy. Only here, on the ranks, is transformers imported."""
    home = importlib.import_module(f"examples.models.{name}")
    text = by_dispatch(declaration(name, mesh)) if eager else declaration(name, mesh)
    return train_beside(text, home.build, home.batch, home.loss, steps, optimizer=descent)


def beside_tp_plan(steps: int = STEPS) -> dict[str, float]:
    """For bodies: Llama as its ``.shard`` file places it, and as transformers' own tensor parallelism does, both from
    one seed. The worst relative differences of losses, norms, gradients of the first step and weights in the end; and
    how many parameters transformers splits."""
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    home = importlib.import_module("examples.models.llama")
    size = dist.get_world_size()
    # What from_pretrained(distributed_config=..) calls between building a model and loading its weights.
    own, _, meshes = LlamaForCausalLM.prepare_distribute_model(DistributedConfig(tp_size=size, tp_plan="auto"))
    torch.manual_seed(0)
    theirs = LlamaForCausalLM.maybe_distribute_model(home.build(), own, meshes)
    program = sl.loads(declaration("llama", f"dp:1 * tp:{size}"))
    torch.manual_seed(0)
    ours = program.apply(home.build(), program.mesh("pod").device_mesh("cpu"))
    both = {"ours": ours, "theirs": theirs}
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=False) for m in both.values()]
    worst = dict.fromkeys(("loss", "norm", "gradient", "weight"), 0.0)
    for step in range(steps):
        batch = home.batch(step)
        with global_view():
            mean = global_mean(*home.loss(ours, place(ours, batch)))
            mean.backward()
        total, count = home.loss(theirs, batch)
        (total / count).backward()
        worst["loss"] = max(worst["loss"], float(abs(whole_value(mean) / whole_value(total / count) - 1)))
        grads = {name: {n: whole_value(p.grad) for n, p in m.named_parameters()} for name, m in both.items()}
        norms = {name: float(sum(g.square().sum() for g in of.values()) ** 0.5) for name, of in grads.items()}
        worst["norm"] = max(worst["norm"], abs(norms["ours"] / norms["theirs"] - 1))
        if step == 0:
            worst["gradient"] = _apart(grads["ours"], grads["theirs"])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    weights = {name: {n: whole_value(p) for n, p in m.named_parameters()} for name, m in both.items()}
    worst["weight"] = _apart(weights["ours"], weights["theirs"])
    return worst | {"split": float(sum(isinstance(p, DTensor) for p in theirs.parameters()))}


def _apart(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The worst difference, relative to the greatest element of its tensor."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max()) for n in ours)
