"""Operators that work element by element on operands that broadcast."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from shardlang.trace.call import Call, RuleMaker, TensorArg
from shardlang.trace.rule import Rule, Shape, Term, group
from shardlang.trace.rules import names, rule

MONOTONE = names(
    "relu exp exp2 expm1 tanh sigmoid floor ceil round trunc erf atan asinh sinh sign hardtanh relu6 softplus "
    "logsigmoid log_sigmoid cbrt deg2rad rad2deg"
)
"""Increasing in their only operand, and defined for every number and both infinities: a pending max or min passes. A
part that does not win may be any number, or the infinity that never does, of which a logarithm would be none."""

SLOPED = names("leaky_relu elu")
"""Increasing where their numbers are not negative."""

PLAIN = names(
    "abs sin cos tan cosh log log2 log10 log1p sqrt logit acos acosh asin atanh erfc erfinv rsqrt reciprocal "
    "square silu gelu mish hardswish hardsigmoid selu celu softshrink hardshrink tanhshrink softsign lgamma "
    "digamma sinc frac isnan isinf isfinite isneginf isposinf logical_not bitwise_not signbit sgn nan_to_num "
    "angle pow atan2 fmod remainder floor_divide true_divide maximum minimum fmax fmin eq ne lt le gt ge "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ addcmul addcdiv clamp clamp_min "
    "clamp_max clip threshold hypot copysign logaddexp logaddexp2 xlogy lerp polar complex isclose heaviside "
    "float_power ldexp"
)
"""No rule for pending values: they must be resolved first."""

LINEAR = names(
    "neg negative positive clone contiguous alias detach lift_fresh_copy lift_fresh conj real imag detach_copy"
)
"""Linear in their only operand."""

CASTS = names("to _to_copy type_as")


def aligned(operands: Iterable[TensorArg], result: Shape) -> tuple[tuple[tuple[Term, ...], ...], dict[str, int]]:
    """The terms of operands that broadcast to a result, and the sizes of the factors, one a dim of the result."""
    sizes = {f"d{i}": n for i, n in enumerate(result)}
    inputs = []
    for operand in operands:
        offset = len(result) - len(operand.shape)
        terms: list[Term] = []
        for i, n in enumerate(operand.shape):
            terms.append((f"d{i + offset}",) if n == result[i + offset] else ())
        inputs.append(tuple(terms))
    return tuple(inputs), sizes


def elementwise(
    call: Call,
    linear: tuple[frozenset[int], ...] = (),
    *,
    monotone: bool = False,
    scalars: tuple[int, ...] = (),
) -> Rule:
    """The rule of an operator on operands that broadcast."""
    inputs, sizes = aligned(call.tensors, call.results[0].shape)
    output = tuple((f"d{i}",) for i in range(len(call.results[0].shape)))
    return Rule(inputs, (output,), sizes, linear=linear, monotone=monotone, scalars=scalars)


def _register(operators: Iterable[str], make: RuleMaker) -> None:
    rule(*sorted(operators))(make)


_register(MONOTONE, lambda call: elementwise(call, monotone=True))
_register(PLAIN, lambda call: elementwise(call))
_register(LINEAR, lambda call: elementwise(call, (group(0),), monotone="aten::neg" not in call.op._schema.name))


@rule(*sorted(SLOPED))
def sloped(call: Call) -> Rule:
    """Two slopes, or a slope and a curve: increasing where no number is negative."""
    return elementwise(call, monotone=all(a >= 0 for a in (*call.args[1:], *call.kwargs.values())))


@rule(*sorted(CASTS))
def cast(call: Call) -> Rule:
    """Linear between floating types (up to rounding); a cast to an integer or bool is not."""
    source, target = call.tensors[0].dtype, call.results[0].dtype
    exact = target == source or (_inexact(source) and _inexact(target)) or not _inexact(source)
    passes = exact and target is not torch.bool
    if call.op._schema.name == "aten::type_as":
        shape = call.tensors[0].shape
        sizes = {f"d{i}": n for i, n in enumerate(shape)}
        terms = tuple((f"d{i}",) for i in range(len(shape)))
        other = tuple((f"o{i}",) for i in range(len(call.tensors[1].shape)))
        sizes.update({f"o{i}": n for i, n in enumerate(call.tensors[1].shape)})
        return Rule((terms, other), (terms,), sizes, linear=(group(0),) if passes else ())
    return elementwise(call, (group(0),) if passes else (), monotone=_in_order(source, target))


def _in_order(source: torch.dtype, target: torch.dtype) -> bool:
    """Does a cast keep the order of all numbers, infinities too? To a bool, and to what wraps, it does not."""
    if source in (target, torch.bool) or (target.is_floating_point and not source.is_complex):
        return True
    if _inexact(source) or _inexact(target) or target is torch.bool:
        return False
    ours, theirs = torch.iinfo(target), torch.iinfo(source)
    return ours.min <= theirs.min and theirs.max <= ours.max


def _inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


@rule("aten.add", "aten.sub", "aten.subtract", "aten.rsub", "aten.__radd__")
def addition(call: Call) -> Rule:
    """Linear in both operands together; an added number is owed by one rank."""
    if len(call.tensors) == 2:
        return elementwise(call, (group(0, 1),))
    return elementwise(call, (group(0),), scalars=(1,))


@rule("aten.mul", "aten.multiply")
def product(call: Call) -> Rule:
    """Linear in each operand alone. ``x * x`` is linear in neither."""
    return elementwise(call, tuple(group(i) for i in range(len(call.tensors))))


@rule("aten.div", "aten.divide")
def quotient(call: Call) -> Rule:
    """Linear in the numerator, unless it rounds."""
    return elementwise(call, () if call.get("rounding_mode") else (group(0),))


@rule("aten.where")
def choice(call: Call) -> Rule:
    """Linear in both branches together; a number as a branch is owed by one rank."""
    scalars = tuple(i for i in (1, 2) if not isinstance(call.args[i], TensorArg))
    values = frozenset(range(1, len(call.tensors)))
    return elementwise(call, (values,) if values else (), scalars=scalars)


@rule("aten.masked_fill")
def masked_fill(call: Call) -> Rule:
    """Linear in the filled tensor; the number is owed by one rank."""
    if len(call.tensors) == 3:
        return elementwise(call, (group(0, 2),))
    return elementwise(call, (group(0),), scalars=(2,))


@rule("aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like")
def like(call: Call) -> Rule:
    """Takes shape and splits from its operand, nothing of its value."""
    return elementwise(call)
