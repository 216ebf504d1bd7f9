"""Words between the ranks that save or load together: reports to the first of them, its verdict back.

Control traffic: small objects, no tensor of a state. A recorder does not count it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from attrs import frozen

from shardlang.diagnostics import Diagnostic, ShardlangError, sl07_state
from shardlang.runtime import faults, record, turns, watch, words


@frozen
class Failure:
    """What went wrong on a rank."""

    diagnostics: tuple[Diagnostic, ...]


@frozen(eq=False)
class Council:
    """The ranks (torch's) that do something together; the first of them decides. ``what`` names it for messages."""

    ranks: tuple[int, ...]
    what: str

    @property
    def index(self) -> int:
        """This rank's place among them."""
        return self.ranks.index(dist.get_rank()) if len(self.ranks) > 1 else 0

    def decide(self, report: Any, verdict: Callable[[list[Any]], Any]) -> Any:
        """Brings every rank's report to the first, and what ``verdict`` makes of them to all.

        A report that is a ``Failure`` ends it: every rank raises the same ShardlangError, as it does where ``verdict``
        raises one. SL0763 where a rank does not come, SL0701 where one comes with something else.
        """
        if len(self.ranks) == 1:
            return _raised(_judged([report], verdict))
        watch.ensure()
        ranks = tuple(sorted(self.ranks))
        try:
            with turns.taken(ranks, self.what):
                answer = self._asked(report, verdict)
        except words.Differ as error:
            raise faults.apart(ranks, error) from error
        except RuntimeError as error:
            if not faults.of_the_wire(error):
                raise
            found = faults.failure(ranks, error)
            found.raise_difference()
            raise ShardlangError(sl07_state.rank_silent(self.what, found.missing, found.cause)) from error
        return _raised(answer)

    def _asked(self, report: Any, verdict: Callable[[list[Any]], Any]) -> Any:
        group = words.group_for_words(self.ranks)
        words.tell(group, self.what)
        first = group.ranks[0]
        reports: list[Any] | None = [None] * group.size if group.index == 0 else None
        with record.noted():
            dist.gather_object(report, reports, dst=first, group=group.handle)
            answer = [_judged(reports, verdict) if reports is not None else None]
            dist.broadcast_object_list(answer, src=first, group=group.handle)
        return answer[0]


def _judged(reports: list[Any], verdict: Callable[[list[Any]], Any]) -> Any:
    failed = [d for r in reports if isinstance(r, Failure) for d in r.diagnostics]
    if failed:
        return Failure(tuple(dict.fromkeys(failed)))
    try:
        return verdict(reports)
    except ShardlangError as error:
        return Failure(error.diagnostics)


def _raised(answer: Any) -> Any:
    if isinstance(answer, Failure):
        raise ShardlangError(answer.diagnostics)
    return answer


__all__ = ["Council", "Failure"]
