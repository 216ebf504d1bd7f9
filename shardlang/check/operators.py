"""``rule`` declarations: how an operator treats the dims of its operands."""

from __future__ import annotations

from shardlang.check.program import OperatorRule
from shardlang.diagnostics import Diagnostic, sl02_names
from shardlang.source import Span
from shardlang.syntax import tree


def resolve_rule(rule: tree.Rule, errors: list[Diagnostic]) -> OperatorRule:
    """The rule with its factors as words. Reports SL0219 and SL0220 for a result's factor that has no origin."""
    operator = rule.operator.text
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


def _factors(pattern: tree.RulePattern) -> list[tree.RuleFactor]:
    return [f for d in pattern.dims for f in (d.factors if isinstance(d, tree.RuleGroup) else (d,))]


def _dims(pattern: tree.RulePattern) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(f.name + f.mark for f in (d.factors if isinstance(d, tree.RuleGroup) else (d,))) for d in pattern.dims
    )
