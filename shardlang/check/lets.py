"""Constants: every ``let`` of a file folded to an integer, in any order of declaration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardlang.check.scope import fold
from shardlang.check.sizes import LIMIT
from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_names, sl03_layouts
from shardlang.syntax import tree


def fold_lets(
    lets: Iterable[tree.Let], sets: Mapping[str, int], errors: list[Diagnostic], *, file: str
) -> dict[str, int]:
    """The value of every name that a ``let`` declares; ``sets`` overrides (``--set``).

    Reports SL0202 for a name declared twice, SL0206 for a set of none, SL0207 for a cycle, SL0208 for a name that no
    ``let`` declares; a name whose value is at fault is 1 in the result, so that it causes no further errors.
    """
    bindings: dict[str, tree.Binding] = {}
    for let in lets:
        for binding in let.bindings:
            first = bindings.setdefault(binding.name.text, binding)
            if first is not binding:
                errors.append(
                    sl02_names.declared_twice(binding.name.span, "constant", binding.name.text, first.name.span)
                )
    errors.extend(sl02_names.set_of_unknown_let(n, list(bindings), file) for n in sets if n not in bindings)
    values: dict[str, int] = {}
    for name, size in sets.items():
        if name in bindings:
            values[name] = size
            if size > LIMIT:
                errors.append(sl03_layouts.number_too_large(bindings[name].name.span, LIMIT))
                values[name] = 1
    for name in bindings:
        _fold(name, bindings, values, errors)
    return {name: values[name] for name in bindings}


def _fold(start: str, bindings: Mapping[str, tree.Binding], values: dict[str, int], errors: list[Diagnostic]) -> None:
    """Values of ``start`` and of all it depends on, depth first without recursion: chains may be long."""
    path: dict[str, Iterator[tree.Ref]] = {}
    waiting = [start]
    while waiting:
        name = waiting[-1]
        if name in values:
            waiting.pop()
            continue
        if name not in path:
            path[name] = iter(list(_refs(bindings[name].value)))
        ref = next((r for r in path[name] if r.name not in values), None)
        if ref is None:
            values[name] = _value(bindings[name].value, values, errors)
            waiting.pop()
            del path[name]
        elif ref.name not in bindings:
            errors.append(sl02_names.unknown_let(ref.span, ref.name, list(bindings)))
            values[ref.name] = 1
        elif ref.name in path:
            cycle = list(path)[list(path).index(ref.name) :]
            errors.append(sl02_names.cyclic_lets(bindings[ref.name].name.span, cycle))
            values.update(dict.fromkeys(cycle, 1))
        else:
            waiting.append(ref.name)


def _refs(expression: tree.Expr) -> Iterator[tree.Ref]:
    if isinstance(expression, tree.Ref):
        yield expression
    elif isinstance(expression, tree.Binary):
        yield from _refs(expression.left)
        yield from _refs(expression.right)


def _value(expression: tree.Expr, values: Mapping[str, int], errors: list[Diagnostic]) -> int:
    try:
        return fold(expression, values).value
    except ShardlangError as error:
        errors.extend(error.diagnostics)
        return 1
