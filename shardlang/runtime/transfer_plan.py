"""A model's weights from one set of layouts to another, on other ranks if need be: who sends what in which round.

Every tensor goes by an exchange (each rank receives what it lacks, and nothing else; no tensor is gathered). Tensors
are packed into rounds, each one all-to-all among all ranks, such that what any rank packs and receives in a round is
within a bound; a tensor that is too large for one round goes in boxes. Every rank works out the same rounds. No torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

from attrs import frozen

from shardlang.diagnostics.prose import plural
from shardlang.layout import Layout, Runs, intersect_runs
from shardlang.plan import exchange
from shardlang.runtime.chunks import Box


@frozen
class Moved:
    """A tensor to be moved: bytes an element, and the layouts before and after."""

    name: str
    itemsize: int
    source: Layout
    target: Layout


@frozen
class Part:
    """A box of a tensor, in one round."""

    tensor: Moved
    box: Box


@frozen
class Piece:
    """Elements (the product of the runs, in global indices) that one rank sends to another, or keeps."""

    tensor: Moved
    sender: int
    receiver: int
    runs: tuple[Runs, ...]

    @property
    def nbytes(self) -> int:
        return _numel(self.runs) * self.tensor.itemsize


@frozen(slots=False)
class TransferPlan:
    """Rounds of parts. ``staging`` bounds, in bytes, what a rank packs and receives in one round."""

    tensors: tuple[Moved, ...]
    rounds: tuple[tuple[Part, ...], ...]
    staging: int

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that has a part in it, ascending."""
        return tuple(sorted({r for t in self.tensors for m in (t.source.mesh, t.target.mesh) for r in m.ranks}))

    @cached_property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """For each rank: bytes received and sent."""
        received: Counter[int] = Counter()
        sent: Counter[int] = Counter()
        for parts in self.rounds:
            for part in parts:
                for rank, (got, gave) in _traffic(part.tensor.source, part.tensor.target, part.box).items():
                    received[rank] += got * part.tensor.itemsize
                    sent[rank] += gave * part.tensor.itemsize
        return {rank: (received[rank], sent[rank]) for rank in self.ranks}

    @property
    def bytes_received(self) -> int:
        """By the worst rank."""
        return max((got for got, _ in self.traffic.values()), default=0)

    @property
    def bytes_sent(self) -> int:
        """By the worst rank."""
        return max((gave for _, gave in self.traffic.values()), default=0)

    @property
    def bytes_moved(self) -> int:
        """By all ranks together."""
        return sum(got for got, _ in self.traffic.values())

    @cached_property
    def staging_peak(self) -> int:
        """The most that any rank packs and receives in a round."""
        return max((max(_round(parts).values(), default=0) for parts in self.rounds), default=0)

    @property
    def collectives(self) -> int:
        return len(self.rounds)

    @cached_property
    def hash(self) -> str:
        """Names the plan: equal for the same tensors, layouts and bound in every process."""
        said = [[t.name, t.itemsize, *_told(t.source), *_told(t.target)] for t in self.tensors]
        return hashlib.sha256(json.dumps([said, self.staging]).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "tensors": len(self.tensors),
            "ranks": list(self.ranks),
            "rounds": len(self.rounds),
            "bytes_moved": self.bytes_moved,
            "bytes_received": self.bytes_received,
            "bytes_sent": self.bytes_sent,
            "staging": self.staging,
            "staging_peak": self.staging_peak,
            "traffic": [{"rank": r, "received": got, "sent": gave} for r, (got, gave) in self.traffic.items()],
            "hash": self.hash,
        }

    def __str__(self) -> str:
        moved, rounds = bytes_text(self.bytes_moved), plural(len(self.rounds), "round")
        staging = f"at most {bytes_text(self.staging_peak)} of {bytes_text(self.staging)} packed on a rank"
        tensors, ranks = plural(len(self.tensors), "tensor"), plural(len(self.ranks), "rank")
        lines = [f"{tensors}, {ranks}, {moved} moved in {rounds}, {staging}"]
        for rank, (got, gave) in self.traffic.items():
            lines.append(f"  rank {rank:<4} receives {bytes_text(got):>12}   sends {bytes_text(gave):>12}")
        return "\n".join(lines)


def plan_transfer(tensors: Mapping[str, tuple[int, Layout, Layout]], staging: int) -> TransferPlan:
    """The plan for tensors by name: (bytes an element, source, target). Tensors that nobody lacks cost nothing.

    A round holds as many as fit; one element is sent in any case, however small ``staging`` is.
    """
    moved = tuple(Moved(name, *tensors[name]) for name in sorted(tensors))
    rounds: list[tuple[Part, ...]] = []
    current: list[Part] = []
    load: Counter[int] = Counter()
    for part in _parts(moved, staging):
        cost = _cost(part)
        if current and any(load[rank] + cost[rank] > staging for rank in cost):
            rounds.append(tuple(current))
            current, load = [], Counter()
        current.append(part)
        load.update(cost)
    if current:
        rounds.append(tuple(current))
    return TransferPlan(moved, tuple(rounds), staging)


def _parts(moved: tuple[Moved, ...], staging: int) -> Iterator[Part]:
    for tensor in moved:
        if 0 not in tensor.source.shape:
            yield from _divided(Part(tensor, tuple((0, n) for n in tensor.source.shape)), staging)


def _divided(part: Part, staging: int) -> Iterator[Part]:
    """The part, or its halves along its first dim that can be halved, until each is within the bound."""
    worst = max(_cost(part).values(), default=0)
    dim = next((d for d, (a, b) in enumerate(part.box) if b - a > 1), None)
    if not worst:
        return
    if worst <= staging or dim is None:
        yield part
        return
    (a, b), pieces = part.box[dim], min(part.box[dim][1] - part.box[dim][0], -(-worst // max(staging, 1)))
    step = -(-(b - a) // pieces)
    for start in range(a, b, step):
        box = (*part.box[:dim], (start, min(start + step, b)), *part.box[dim + 1 :])
        yield from _divided(Part(part.tensor, box), staging)


def _cost(part: Part) -> Counter[int]:
    """For each rank: the bytes that it packs and receives."""
    moves = _traffic(part.tensor.source, part.tensor.target, part.box)
    return Counter({rank: (got + gave) * part.tensor.itemsize for rank, (got, gave) in moves.items()})


def _round(parts: tuple[Part, ...]) -> Counter[int]:
    total: Counter[int] = Counter()
    for part in parts:
        total.update(_cost(part))
    return total


@lru_cache(maxsize=1 << 14)
def _traffic(source: Layout, target: Layout, box: Box) -> Mapping[int, tuple[int, int]]:
    """Elements of the box that each rank receives and sends."""
    received: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    for transfer in _transfers(source, target):
        if transfer.sender != transfer.receiver:
            count = _numel(_within(transfer.runs, box))
            received[transfer.receiver] += count
            sent[transfer.sender] += count
    return {rank: (received[rank], sent[rank]) for rank in {*received, *sent} if received[rank] or sent[rank]}


@lru_cache(maxsize=256)
def _transfers(source: Layout, target: Layout) -> tuple[exchange.Transfer, ...]:
    return tuple(exchange.transfers(source, target))


def kept(tensor: Moved, rank: int) -> tuple[Piece, ...]:
    """What a rank keeps of a tensor."""
    found = _transfers(tensor.source, tensor.target)
    return tuple(Piece(tensor, rank, rank, t.runs) for t in found if t.sender == rank == t.receiver)


def sends(parts: tuple[Part, ...], rank: int) -> list[Piece]:
    """What a rank sends in a round, by receiver, then in order of part."""
    return _pieces(parts, lambda t: t.sender == rank != t.receiver, lambda p: p.receiver)


def receives(parts: tuple[Part, ...], rank: int) -> list[Piece]:
    """What a rank receives in a round, by sender, then in order of part."""
    return _pieces(parts, lambda t: t.receiver == rank != t.sender, lambda p: p.sender)


def _pieces(parts: tuple[Part, ...], mine: Any, peer: Any) -> list[Piece]:
    found: list[Piece] = []
    for part in parts:
        for t in _transfers(part.tensor.source, part.tensor.target):
            if mine(t):
                runs = _within(t.runs, part.box)
                if _numel(runs):
                    found.append(Piece(part.tensor, t.sender, t.receiver, runs))
    return sorted(found, key=peer)


def _within(runs: tuple[Runs, ...], box: Box) -> tuple[Runs, ...]:
    return tuple(intersect_runs(r, (interval,)) for r, interval in zip(runs, box, strict=True))


def _numel(runs: tuple[Runs, ...]) -> int:
    return math.prod(sum(b - a for a, b in r) for r in runs)


def _told(layout: Layout) -> tuple[str, int, str]:
    """A layout in words that are equal where two layouts say the same, however they are written."""
    return str(layout.mesh), layout.mesh.first_rank, repr(layout.canonical())


def bytes_text(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


__all__ = ["Moved", "Part", "Piece", "TransferPlan", "bytes_text", "kept", "plan_transfer", "receives", "sends"]
