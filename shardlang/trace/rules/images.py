"""Operators on the last dims of images and signals: windows, sizes, transforms."""

from __future__ import annotations

from attrs import evolve

from shardlang.trace.call import Call, axis_of
from shardlang.trace.rule import Rule, Term, group
from shardlang.trace.rules import names, rule
from shardlang.trace.rules.views import along

WINDOWS = names(
    "max_pool3d avg_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d "
    "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d"
)
SIZES = names(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d"
)


def _space(call: Call) -> int:
    return next(int(d) for d in "123" if f"{d}d" in call.op._schema.name)


@rule(*sorted(WINDOWS | SIZES))
def windows(call: Call) -> Rule:
    """Windows move along the last dims, which must be whole; averages and new sizes are linear."""
    rank = len(call.tensors[0].shape)
    linear = "max" not in call.op._schema.name
    made = along(call, range(rank - _space(call), rank), "a window moves along this dim", linear=linear)
    return evolve(made, solid=True)


@rule("aten.im2col", "aten.col2im")
def columns(call: Call) -> Rule:
    """All but the batch must be whole."""
    sizes = {f"x{i}": n for i, n in enumerate(call.tensors[0].shape)}
    batched = len(call.tensors[0].shape) == (4 if "im2col" in call.op._schema.name else 3)
    terms: list[Term] = [(n,) for n in sizes]
    out: list[Term] = []
    for i, n in enumerate(call.results[0].shape):
        name = "x0" if batched and i == 0 else f"y{i}"
        sizes.setdefault(name, n)
        out.append((name,))
    whole = frozenset(n for n in sizes if not (batched and n == "x0"))
    return Rule((tuple(terms),), (tuple(out),), sizes, whole=whole, linear=(group(0),), solid=True)


@rule("aten.unfold")
def unfolded(call: Call) -> Rule:
    """Windows of a dim, which must be whole, as a new last dim."""
    shape, result = call.tensors[0].shape, call.results[0].shape
    dim = axis_of(call.args[1], len(shape))
    sizes = {f"d{i}": n for i, n in enumerate(shape)} | {"count": result[dim], "window": result[-1]}
    terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(len(shape)))
    output = (*terms[:dim], ("count",), *terms[dim + 1 :], ("window",))
    return Rule((terms,), (output,), sizes, whole=frozenset({f"d{dim}"}), linear=(group(0),))


@rule("aten._fft_r2c", "aten._fft_c2r", "aten._fft_c2c")
def transform(call: Call) -> Rule:
    """Transformed dims must be whole."""
    rank = len(call.tensors[0].shape)
    return along(call, [axis_of(d, rank) for d in call.args[1]], "a transform runs along this dim", linear=True)


@rule("aten.batch_norm", "aten._native_batch_norm_legit_no_training")
def batch_norm(call: Call) -> Rule:
    """With given mean and variance, element by element. In training they are the batch's own, and all but the channels
    must be whole; else it is rewritten."""
    training = call.op._schema.name == "aten::batch_norm" and call.get("training")
    shape = call.tensors[0].shape
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(len(shape)))
    channels: tuple[Term, ...] = (("d1",),)
    outputs: list[tuple[Term, ...]] = [terms]
    for i, result in enumerate(call.results[1:], 1):
        sizes.update({f"r{i}x{d}": n for d, n in enumerate(result.shape)})
        outputs.append(tuple((f"r{i}x{d}",) for d in range(len(result.shape))))
    inputs = (terms, *(channels,) * (len(call.tensors) - 1))
    whole = frozenset(f"d{i}" for i in range(len(shape)) if i != 1) if training else frozenset[str]()
    why = "mean and variance are taken over it"
    return Rule(inputs, tuple(outputs), sizes, whole=whole, solid=True, why_whole=why)


@rule("aten.grid_sampler_2d", "aten.grid_sampler")
def grid(call: Call) -> Rule | None:
    """``[n c h! w!] [n y x two!] -> [n c y x]``, linear in the image."""
    if len(call.tensors[0].shape) != 4:
        return None
    (n, c, h, w), (_, y, x, two) = (t.shape for t in call.tensors)
    sizes = {"n": n, "c": c, "h": h, "w": w, "y": y, "x": x, "two": two}
    inputs: tuple[tuple[Term, ...], ...] = tuple(
        tuple((k,) for k in names_of.split()) for names_of in ("n c h w", "n y x two")
    )
    outputs: tuple[Term, ...] = (("n",), ("c",), ("y",), ("x",))
    whole = frozenset({"h", "w", "two"})
    return Rule(inputs, (outputs,), sizes, whole=whole, linear=(group(0),), solid=True)


@rule("aten.linalg_cross", "aten.trace")
def vectors(call: Call) -> Rule | None:
    """The dim of a cross product, and both of a trace, must be whole."""
    if call.op._schema.name == "aten::trace":
        sizes = {f"d{i}": n for i, n in enumerate(call.tensors[0].shape)}
        return Rule((tuple((n,) for n in sizes),), ((),), sizes, whole=frozenset(sizes), linear=(group(0),))
    if call.tensors[0].shape != call.tensors[1].shape:
        return None
    made = along(call, [axis_of(call.get("dim"), len(call.tensors[0].shape))], "a cross product takes three")
    return evolve(made, inputs=made.inputs * 2, linear=(group(0), group(1)))
