"""``rule`` declarations: how an operator treats the dims of its operands."""

from __future__ import annotations

from shardlang.check.program import OperatorRule
from shardlang.diagnostics import Diagnostic, sl02_names
from shardlang.source import Span
from shardlang.syntax import tree


def resolve_rule(rule: tree.Rule, errors: list[Diagnostic]) -> OperatorRule:
    """The rule with its factors as words. Reports SL0219 and SL0220 for a result's factor that has no origin, and
    SL0228 for ``...`` where it stands for no dims of their own."""
    operator = rule.operator.text
    for pattern in (*rule.inputs, *rule.outputs):
        errors += _misplaced_rests(pattern, operator)
    known: dict[str, tree.RuleFactor] = {}
    for pattern in rule.inputs:
        for factor in _factors(pattern):
            if known.setdefault(factor.name, factor).mark != "+" and factor.mark == "+":
                known[factor.name] = factor
    for pattern in rule.outputs:
        for factor in _factors(pattern):
            if factor.name not in known and not factor.name.isdecimal():
                errors.append(sl02_names.factor_from_nowhere(factor.span, factor.name, operator, list(known)))
            elif factor.name in known and known[factor.name].mark == "+":
                first: Span = known[factor.name].span
                errors.append(sl02_names.contracted_factor_kept(factor.span, factor.name, operator, first))
    return OperatorRule(operator, tuple(map(_dims, rule.inputs)), tuple(map(_dims, rule.outputs)), rule.span)


def _misplaced_rests(pattern: tree.RulePattern, operator: str) -> list[Diagnostic]:
    """SL0228 for each ``...`` after the first of a pattern, or among the factors of one dim."""
    faults: list[Diagnostic] = []
    first: Span | None = None
    for dim in pattern.dims:
        for factor in dim.factors if isinstance(dim, tree.RuleGroup) else (dim,):
            if factor.name == "..." and (first is not None or isinstance(dim, tree.RuleGroup)):
                faults.append(sl02_names.misplaced_rest_of_rule(factor.span, operator, first))
            elif factor.name == "...":
                first = factor.span
    return faults


def _factors(pattern: tree.RulePattern) -> list[tree.RuleFactor]:
    return [f for d in pattern.dims for f in (d.factors if isinstance(d, tree.RuleGroup) else (d,))]


def _dims(pattern: tree.RulePattern) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(f.name + f.mark for f in (d.factors if isinstance(d, tree.RuleGroup) else (d,))) for d in pattern.dims
    )
