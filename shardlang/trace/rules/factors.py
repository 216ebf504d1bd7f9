"""Rules written in the language: those of ``operators.shard``, and users' own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from shardlang.check import check
from shardlang.check.program import OperatorRule
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.source import Source
from shardlang.syntax.parse import parse
from shardlang.trace.call import Call, RuleMaker
from shardlang.trace.rule import Rule, Shape, Term, group
from shardlang.trace.rules import DECLARED, RULES, rule

Pattern = tuple[tuple[str, ...], ...]


def written(declared: OperatorRule, linear: tuple[frozenset[int], ...] | None = None) -> RuleMaker:
    """The maker of a declared rule's instances. ``linear``: the groups of operands it is linear in.

    By default a rule that sums over a factor is linear in each operand, and another in none.
    """

    def make(call: Call) -> Rule:
        return instance(declared, call, linear)

    return make


def instance(declared: OperatorRule, call: Call, linear: tuple[frozenset[int], ...] | None) -> Rule:
    """The rule for one call: ``...`` written out, every factor with its size. Raises SL0518 where it does not match."""
    shapes = [t.shape for t in call.tensors]
    results = [t.shape for t in call.results]
    if len(shapes) != len(declared.inputs) or len(results) != len(declared.outputs):
        raise _mismatch(declared, f"it has {len(shapes)} operands and {len(results)} results")
    lead = {
        len(s) - _dims(p)
        for s, p in zip([*shapes, *results], [*declared.inputs, *declared.outputs], strict=True)
        if _rest(p)
    }
    if len(lead) > 1 or any(n < 0 for n in lead):
        raise _mismatch(declared, "`...` stands for a different number of dims in each tensor")
    rest = [f"...{i}" for i in range(lead.pop() if lead else 0)]
    contract: set[str] = set()
    whole: set[str] = set()
    terms: list[tuple[Term, ...]] = []
    for pattern in (*declared.inputs, *declared.outputs):
        dims: list[Term] = []
        for dim in pattern:
            if dim[0].startswith("..."):
                dims += [(name,) for name in rest]
                contract.update(rest if dim[0].endswith("+") else ())
                whole.update(rest if dim[0].endswith("!") else ())
                continue
            names = []
            for factor in dim:
                name = factor.rstrip("+!")
                if factor.endswith("+"):
                    contract.add(name)
                if factor.endswith("!"):
                    whole.add(name)
                names.append(name)
            dims.append(tuple(names))
        terms.append(tuple(dims))
    sizes = _sizes(declared, terms, [*shapes, *results])
    inputs, outputs = tuple(terms[: len(shapes)]), tuple(terms[len(shapes) :])
    if linear is None:
        linear = tuple(group(i) for i in range(len(inputs))) if contract else ()
    return Rule(inputs, outputs, sizes, contract=frozenset(contract), whole=frozenset(whole), linear=linear)


def _rest(pattern: Pattern) -> bool:
    return any(d[0].startswith("...") for d in pattern)


def _dims(pattern: Pattern) -> int:
    return sum(not d[0].startswith("...") for d in pattern)


def _sizes(declared: OperatorRule, terms: list[tuple[Term, ...]], shapes: list[Shape]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for dims in terms:
        sizes.update({n: int(n) for t in dims for n in t if n.isdecimal()})
    todo: list[tuple[Term, int]] = []
    for dims, shape in zip(terms, shapes, strict=True):
        if len(dims) != len(shape):
            raise _mismatch(declared, f"a tensor of {len(shape)} dims meets a pattern of {len(dims)}")
        todo += list(zip(dims, shape, strict=True))
    progress = True
    while progress and todo:
        progress, left = False, []
        for term, size in todo:
            known, unknown = 1, []
            for name in term:
                if name in sizes:
                    known *= sizes[name]
                else:
                    unknown.append(name)
            if not unknown:
                if known != size:
                    raise _mismatch(declared, f"`{' '.join(term)}` is {known} and meets a dim of {size}")
                continue
            if len(unknown) == 1 and known and size % known == 0:
                sizes[unknown[0]] = size // known
                progress = True
            else:
                left.append((term, size))
        todo = left
    if todo:
        raise _mismatch(declared, f"the sizes of `{' '.join(todo[0][0])}` are not determined")
    return sizes


def _mismatch(declared: OperatorRule, why: str) -> ShardlangError:
    return ShardlangError(sl05_functions.rule_does_not_match(declared.operator, declared.span.text, why, declared.span))


def read(source: Source) -> tuple[OperatorRule, ...]:
    """The ``rule`` declarations of a text."""
    return check(parse(source)).rules


def _load() -> None:
    text = files("shardlang.trace.rules").joinpath("operators.shard").read_text()
    for declared in read(Source("operators.shard", text)):
        rule(declared.operator)(written(declared))


def declare(operator: str, declared: OperatorRule, linear: tuple[frozenset[int], ...] | None) -> None:
    """Registers a user's rule for every function; it takes the place of an older one for the same operator."""
    made = written(declared, linear)
    RULES[operator.replace("::", ".")] = made
    DECLARED.add(made)


@lru_cache(maxsize=64)
def makers(rules: tuple[OperatorRule, ...]) -> Mapping[str, RuleMaker]:
    """The ``rule`` declarations of a file, by operator, for ``of_file``."""
    return {declared.operator.replace("::", "."): written(declared) for declared in rules}


_load()
