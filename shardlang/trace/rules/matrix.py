"""Products of matrices: the summed factor may be split, and leaves a pending sum."""

from __future__ import annotations

from shardlang.trace.call import Call
from shardlang.trace.rule import Rule, Term, group
from shardlang.trace.rules import rule

BILINEAR = (group(0), group(1))


@rule("aten.matmul", "aten.__matmul__", "aten.linalg_matmul")
def matmul(call: Call) -> Rule:
    """``[... i k+] [... k+ j] -> [... i j]``, leading dims broadcast; vectors have no ``i`` or ``j``."""
    a, b = (t.shape for t in call.tensors)
    result = call.results[0].shape
    sizes: dict[str, int] = {"k": a[-1]}
    tail: list[Term] = []
    left: list[Term] = [("k",)]
    right: list[Term] = [("k",)]
    if len(a) > 1:
        sizes["i"] = a[-2]
        left.insert(0, ("i",))
        tail.append(("i",))
    if len(b) > 1:
        sizes["j"] = b[-1]
        right.append(("j",))
        tail.append(("j",))
    lead = len(result) - len(tail)
    sizes.update({f"b{i}": result[i] for i in range(lead)})

    def batch(shape: tuple[int, ...]) -> list[Term]:
        dims = shape[:-2] if len(shape) > 1 else ()
        offset = lead - len(dims)
        return [(f"b{i + offset}",) if n == result[i + offset] else () for i, n in enumerate(dims)]

    inputs = (tuple(batch(a) + left), tuple(batch(b) + right))
    outputs = (tuple([(f"b{i}",) for i in range(lead)] + tail),)
    return Rule(inputs, outputs, sizes, contract=frozenset("k"), linear=BILINEAR)


@rule("aten.cdist", "aten._cdist_forward", "aten._euclidean_dist")
def distances(call: Call) -> Rule:
    """``[... i d!] [... j d!] -> [... i j]``: rows of both sides may be split; leading dims broadcast."""
    a, b = (t.shape for t in call.tensors)
    result = call.results[0].shape
    lead = len(result) - 2
    sizes = {"i": a[-2], "j": b[-2], "d": a[-1]} | {f"b{i}": result[i] for i in range(lead)}

    def batch(shape: tuple[int, ...]) -> tuple[Term, ...]:
        offset = lead - (len(shape) - 2)
        return tuple((f"b{i + offset}",) if n == result[i + offset] else () for i, n in enumerate(shape[:-2]))

    inputs = ((*batch(a), ("i",), ("d",)), (*batch(b), ("j",), ("d",)))
    outputs: tuple[Term, ...] = (*((f"b{i}",) for i in range(lead)), ("i",), ("j",))
    why = "a distance is taken along this dim"
    return Rule(inputs, (outputs,), sizes, whole=frozenset("d"), solid=True, why_whole=why)


@rule("aten.pdist", "aten._pdist_forward")
def distances_within(call: Call) -> Rule:
    """Every row meets every other: both dims must be whole."""
    sizes = {"n": call.tensors[0].shape[0], "d": call.tensors[0].shape[1], "m": call.results[0].shape[0]}
    why = "every row meets every other"
    return Rule(((("n",), ("d",)),), ((("m",),),), sizes, whole=frozenset("nd"), why_whole=why)


@rule("aten.linear")
def linear(call: Call) -> Rule:
    """``[... k+] [o k+] [o] -> [... o]``: the bias is added by one rank where the sum is owed."""
    x, w = call.tensors[0].shape, call.tensors[1].shape
    sizes = {f"b{i}": n for i, n in enumerate(x[:-1])} | {"k": x[-1]}
    lead: tuple[Term, ...] = tuple((f"b{i}",) for i in range(len(x) - 1))
    weight: tuple[Term, ...] = (("k",),)
    out: tuple[Term, ...] = ()
    if len(w) == 2:
        sizes["o"] = w[0]
        weight, out = (("o",), ("k",)), (("o",),)
    inputs: tuple[tuple[Term, ...], ...] = ((*lead, ("k",)), weight)
    if len(call.tensors) == 3:
        inputs = (*inputs, out)
    return _biased(call, inputs, (*lead, *out), sizes, bias=2)


def _biased(
    call: Call, inputs: tuple[tuple[Term, ...], ...], out: tuple[Term, ...], sizes: dict[str, int], bias: int
) -> Rule:
    factors = [i for i in range(3) if i != bias]
    linear = BILINEAR
    additive = frozenset[int]()
    if len(call.tensors) == 3:
        linear = (group(factors[0], bias), group(factors[1], bias))
        additive = group(bias)
    return Rule(inputs, (out,), sizes, contract=frozenset("k"), linear=linear, additive=additive)


@rule("aten.addmm", "aten.baddbmm", "aten.addmv")
def addmm(call: Call) -> Rule:
    """A product added to an operand that broadcasts."""
    bias, a, b = (t.shape for t in call.tensors)
    out: list[Term] = [("i",)] if len(b) == 1 else [("i",), ("j",)]
    left: list[Term] = [("i",), ("k",)]
    right: list[Term] = [("k",)] if len(b) == 1 else [("k",), ("j",)]
    sizes = {"i": a[-2], "k": a[-1]}
    if len(b) > 1:
        sizes["j"] = b[-1]
    if len(a) == 3:
        sizes["n"] = a[0]
        out, left, right = ([("n",), *terms] for terms in (out, left, right))
    offset = len(out) - len(bias)
    added = tuple(out[i + offset] if n == sizes[out[i + offset][0]] else () for i, n in enumerate(bias))
    return _biased(call, (added, tuple(left), tuple(right)), tuple(out), sizes, bias=0)


@rule("aten.einsum")
def einsum(call: Call) -> Rule | None:
    """The equation is the rule. Letters repeated in one operand, and ellipses, have no rule."""
    equation = call.args[0].replace(" ", "")
    if "." in equation:
        return None
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    if not arrow:
        letters = "".join(operands)
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    sizes: dict[str, int] = {}
    inputs = []
    for letters, operand in zip(operands, call.tensors, strict=True):
        if len(set(letters)) != len(letters):
            return None
        sizes.update({c: n for c, n in zip(letters, operand.shape, strict=True) if n != 1 or c not in sizes})
        inputs.append(letters)
    terms = tuple(
        tuple((c,) if n == sizes[c] else () for c, n in zip(letters, operand.shape, strict=True))
        for letters, operand in zip(inputs, call.tensors, strict=True)
    )
    contract = frozenset(sizes) - frozenset(right)
    # A letter that one operand lacks is summed in the others: its axes are owed, and the operand without it is whole.
    return Rule(
        terms,
        (tuple((c,) for c in right),),
        sizes,
        contract=contract,
        linear=tuple(group(i) for i in range(len(inputs))),
    )
