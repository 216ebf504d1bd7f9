"""Layers of networks: normalisation, attention, convolution, embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import evolve

from shardlang.trace.call import Call, axis_of
from shardlang.trace.rule import Literals, Rule, Shape, Term, group
from shardlang.trace.rules import rule
from shardlang.trace.rules.pointwise import elementwise


@rule("aten.layer_norm", "aten.rms_norm", "aten._fused_rms_norm", "aten.native_layer_norm")
def normalisation(call: Call) -> Rule:
    """The normalised dims, and the weights along them, must be whole."""
    shape = call.tensors[0].shape
    last = len(call.get("normalized_shape"))
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(len(shape)))
    tail = terms[len(shape) - last :]
    inputs = (terms, *(tail,) * (len(call.tensors) - 1))
    outputs = [terms]
    for result in call.results[1:]:
        nothing: Term = ()
        outputs.append(tuple(terms[i] if n == shape[i] else nothing for i, n in enumerate(result.shape)))
    whole = frozenset(t[0] for t in tail)
    return Rule(inputs, tuple(outputs), sizes, whole=whole, why_whole="a norm is taken over this dim")


@rule("aten.group_norm", "aten.native_group_norm")
def group_norm(call: Call) -> Rule:
    """``[n (g c!) h! ..] [(g c!)] [(g c!)] -> [n (g c!) h! ..]``: split by batch, or by whole groups of channels."""
    shape = call.tensors[0].shape
    native = len(call.results) > 1
    groups = call.get("group" if native else "num_groups")
    space = range(2, len(shape))
    sizes = {"n": shape[0], "g": groups, "c": shape[1] // groups} | {f"h{i}": shape[i] for i in space}
    channels: tuple[Term, ...] = (("g", "c"),)
    terms: tuple[Term, ...] = (("n",), *channels, *((f"h{i}",) for i in space))
    outputs: tuple[tuple[Term, ...], ...] = (terms, (("n",), ("g",)), (("n",), ("g",))) if native else (terms,)

    def local(
        args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Sequence[Shape], results: Sequence[Shape]
    ) -> tuple[Any, ...]:
        here = inputs[0]
        mine = here[1] // sizes["c"]
        if native:
            return (*args[:3], here[0], here[1], math.prod(here[2:]), mine, *args[7:])
        return (args[0], mine, *args[2:])

    return Rule(
        (terms, *(channels,) * (len(call.tensors) - 1)),
        outputs,
        sizes,
        whole=frozenset(sizes) - {"n", "g"},
        literals=Literals(local),
        solid=True,
        why_whole="a norm is taken over this dim",
    )


@rule("aten.glu")
def gated(call: Call) -> Rule:
    """Both halves of a dim meet, which must be whole."""
    from shardlang.trace.rules.views import along

    dim = axis_of(call.get("dim"), len(call.tensors[0].shape))
    return along(call, (dim,), "both halves of this dim meet", linear=False)


@rule("aten.scaled_dot_product_attention")
def attention(call: Call) -> Rule | None:
    """``[... h s e!] [... h t! e!] [... h t! f] -> [... h s f]``; heads in groups under ``enable_gqa``.

    A causal mask is cut by global indices, so that ``s`` must be whole. Linear in the values.
    """
    if call.get("dropout_p"):
        return None
    q, k, v = (t.shape for t in call.tensors[:3])
    result = call.results[0].shape
    lead = len(q) - 2
    sizes = {"s": q[-2], "e": q[-1], "t": k[-2], "f": v[-1]}
    head: Term = (f"b{lead - 1}",) if lead else ()
    nothing: Term = ()
    sizes.update({f"b{i}": result[i] for i in range(lead)})
    query: list[Term] = [(f"b{i}",) for i in range(lead)]
    other = list(query)
    if lead and call.get("enable_gqa") and q[-3] != k[-3]:
        sizes[f"b{lead - 1}"] = k[-3]
        sizes["g"] = q[-3] // k[-3]
        query[-1] = (*head, "g")
    whole = {"e", "t"} | ({"s"} if call.get("is_causal") else set())

    def batch(shape: tuple[int, ...], terms: list[Term]) -> tuple[Term, ...]:
        return tuple(
            t if n == result[i] or i == lead - 1 else nothing
            for i, (t, n) in enumerate(zip(terms, shape, strict=False))
        )

    inputs: list[tuple[Term, ...]] = [
        (*batch(q[:-2], query), ("s",), ("e",)),
        (*batch(k[:-2], other), ("t",), ("e",)),
        (*batch(v[:-2], other), ("t",), ("f",)),
    ]
    if len(call.tensors) == 4:
        mask = call.tensors[3].shape
        full = [*query, ("s",), ("t",)]
        shape = (*q[:-1], k[-2])
        offset = len(full) - len(mask)
        inputs.append(tuple(full[i + offset] if n == shape[i + offset] else () for i, n in enumerate(mask)))
    outputs = ((*query, ("s",), ("f",)),)
    why = "attention is taken along this dim"
    return Rule(tuple(inputs), outputs, sizes, whole=frozenset(whole), linear=(group(2),), why_whole=why)


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")
def convolution(call: Call) -> Rule | None:
    """``[n c+ h! ..] [o c+ kh! ..] [o] -> [n o h! ..]``: split by batch, or by channels of either side."""
    if call.get("transposed"):
        return None
    x, w = call.tensors[0].shape, call.tensors[1].shape
    result = call.results[0].shape
    space = len(w) - 2
    if len(x) != len(w):
        return None
    sizes = {"n": x[0], "c": x[1], "o": w[0]}
    whole = set()
    for i in range(space):
        sizes.update({f"h{i}": x[2 + i], f"k{i}": w[2 + i], f"y{i}": result[2 + i]})
        whole |= {f"h{i}", f"k{i}"}
    channels: Term = ("c",)
    if call.get("groups") != 1:
        sizes["cg"] = w[1]
        channels = ("cg",)
        whole |= {"c", "cg", "o"}
    inputs: tuple[tuple[Term, ...], ...] = (
        (("n",), ("c",), *((f"h{i}",) for i in range(space))),
        (("o",), channels, *((f"k{i}",) for i in range(space))),
    )
    biased = len(call.tensors) == 3
    if biased:
        inputs = (*inputs, (("o",),))
    outputs = ((("n",), ("o",), *((f"y{i}",) for i in range(space))),)
    linear = (group(0, 2), group(1, 2)) if biased else (group(0), group(1))
    additive = group(2) if biased else frozenset[int]()
    return Rule(
        inputs,
        outputs,
        sizes,
        contract=frozenset("c"),
        whole=frozenset(whole),
        linear=linear,
        additive=additive,
        solid=True,
        why_whole="a window moves along this dim",
    )


@rule("aten.max_pool2d", "aten.avg_pool2d", "aten.max_pool1d", "aten.avg_pool1d", "aten.adaptive_avg_pool2d")
def pooling(call: Call) -> Rule:
    """Windows move along the last dims, which must be whole; an average is linear."""
    from shardlang.trace.rules.views import along

    rank = len(call.tensors[0].shape)
    space = 1 if "1d" in call.op._schema.name else 2
    linear = "avg" in call.op._schema.name
    made = along(call, range(rank - space, rank), "a window moves along this dim", linear=linear)
    return evolve(made, solid=True)


@rule(
    "aten.binary_cross_entropy", "aten.binary_cross_entropy_with_logits", "aten.kl_div", "aten.smooth_l1_loss",
    "aten.huber_loss", "aten.soft_margin_loss",
)  # fmt: skip
def loss_of_elements(call: Call) -> Rule | None:
    """Element by element; a mean or a sum is rewritten."""
    return elementwise(call) if call.get("reduction") == 0 else None


@rule("aten.cross_entropy_loss", "aten.nll_loss", "aten.nll_loss_nd")
def cross_entropy(call: Call) -> Rule | None:
    """Classes must be whole. Per row, or as a sum that is owed over what splits the rows; a mean is rewritten."""
    reduction = call.get("reduction")
    if reduction == 1:
        return None
    logits, target = call.tensors[0].shape, call.tensors[1].shape
    classes = 1 if len(logits) > 1 else 0
    sizes = {f"d{i}": n for i, n in enumerate(logits)}
    terms = tuple((f"d{i}",) for i in range(len(logits)))
    rows = terms[:classes] + terms[classes + 1 :]
    inputs: tuple[tuple[Term, ...], ...] = (terms, terms if len(target) == len(logits) else rows)
    if len(call.tensors) == 3:
        inputs = (*inputs, (terms[classes],))
    contract = frozenset[str]() if reduction == 0 else frozenset(t[0] for t in rows)
    why = "the probabilities of all classes are normalised together"
    outputs: tuple[Term, ...] = rows if reduction == 0 else ()
    return Rule(inputs, (outputs,), sizes, contract=contract, whole=frozenset({f"d{classes}"}), why_whole=why)
