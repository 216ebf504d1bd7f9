"""Codes SL05: functions and operators. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from shardlang.diagnostics.diagnostic import Diagnostic, Label, message
from shardlang.diagnostics.prose import did_you_mean, quoted
from shardlang.source import Span


@frozen
class Operand:
    """A tensor operand of an operator at fault: its layout as text, and where that layout comes from."""

    name: str
    layout: str
    span: Span | None = None


@frozen
class Choice:
    """A way out: what to write, and what it costs (bytes received by the worst rank, modelled picoseconds)."""

    text: str
    bytes: int
    time: int


def _choices(choices: Sequence[Choice]) -> tuple[str, ...]:
    if not choices:
        return ("bring the operands to layouts that fit with `sl.reshard`",)
    return tuple(f"{c.text}  ({_bytes(c.bytes)}, {_time(c.time)})" for c in choices)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _time(picoseconds: int) -> str:
    for unit, size in (("s", 10**12), ("ms", 10**9)):
        if picoseconds >= size:
            return f"{picoseconds / size:.3g} {unit}"
    return f"{picoseconds / 10**6:.3g} us"


def _where(operands: Sequence[Operand]) -> tuple[Label, ...]:
    return tuple(Label(o.span, f"`{o.name}` is {o.layout}") for o in operands if o.span is not None)


def _facts(operands: Sequence[Operand]) -> tuple[str, ...]:
    return tuple(f"`{o.name}` is {o.layout}" for o in operands if o.span is None)


@message("SL0501", "operands of an operator are split differently")
def operands_differ(
    operator: str, span: Span | None, operands: Sequence[Operand], choices: Sequence[Choice]
) -> Diagnostic:
    return Diagnostic(
        f"operands of `{operator}` are split differently",
        span=span,
        labels=_where(operands),
        notes=_facts(operands),
        helps=_choices(choices),
    )


@message("SL0502", "a dim that an operator needs whole is split")
def dim_must_be_whole(
    operator: str, span: Span | None, operand: Operand, dim: int | None, axis: str, why: str, choices: Sequence[Choice]
) -> Diagnostic:
    reason = why or f"`{operator}` reads along this dim"
    return Diagnostic(
        f"`{operator}` needs dim {dim} of `{operand.name}` whole, but `{axis}` splits it",
        span=span,
        labels=_where([operand]),
        notes=(*_facts([operand]), reason),
        helps=_choices(choices),
    )


@message("SL0503", "an axis would split two dims of an operator")
def axis_meets_itself(
    operator: str, span: Span | None, axis: str, operands: Sequence[Operand], choices: Sequence[Choice]
) -> Diagnostic:
    return Diagnostic(
        f"mesh axis `{axis}` would split two dims of `{operator}`",
        span=span,
        labels=_where(operands),
        notes=(*_facts(operands), "an axis splits one dim of a computation at most"),
        helps=_choices(choices),
    )


@message("SL0504", "a pending value meets an operator that is not linear in it")
def pending_meets_nonlinear(
    operator: str, span: Span | None, operand: Operand, pending: str, choices: Sequence[Choice]
) -> Diagnostic:
    return Diagnostic(
        f"`{operator}` is not linear in `{operand.name}`, which is pending over {pending}",
        span=span,
        labels=_where([operand]),
        notes=(*_facts([operand]), "only linear operators take a value whose reduction is still owed"),
        helps=_choices(choices),
    )


@message("SL0505", "a pending and a whole value are added")
def pending_meets_whole(
    operator: str, span: Span | None, operands: Sequence[Operand], axis: str, choices: Sequence[Choice]
) -> Diagnostic:
    return Diagnostic(
        f"operands of `{operator}` are partly pending over `{axis}` and partly not",
        span=span,
        labels=_where(operands),
        notes=_facts(operands),
        helps=_choices(choices),
    )


@message("SL0506", "a view cuts across a split")
def view_cuts_split(
    operator: str, span: Span | None, operand: Operand, dim: int | None, axis: str | None, choices: Sequence[Choice]
) -> Diagnostic:
    by = f"`{axis}` splits" if axis else "is split unevenly"
    where = f"dim {dim} of `{operand.name}`"
    return Diagnostic(
        f"`{operator}` cuts {where}, which {by}, at a boundary that the split does not respect",
        span=span,
        labels=_where([operand]),
        notes=(*_facts([operand]), "a split has to fall on whole factors: `(kv/tp g k)` splits by whole `kv`"),
        helps=_choices(choices),
    )


@message("SL0507", "an operator has no rule")
def no_rule(operator: str, span: Span | None, operands: Sequence[Operand]) -> Diagnostic:
    return Diagnostic(
        f"operator `{operator}` has no rule, so its operands must be whole",
        span=span,
        labels=_where(operands),
        notes=_facts(operands),
        helps=(
            "make them whole with `sl.reshard`",
            f'or say how it treats splits: `sl.rule("{operator}", "[i] -> [i]")`',
        ),
    )


@message("SL0508", "a function reads a value of a traced tensor")
def value_read(function: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{function}` reads a tensor's value in Python (`.item()`, `if tensor`, `int(tensor)`)",
        span=span,
        notes=("a function is traced once on shapes, before there are values",),
        helps=("use `torch.where`, or pass the number as an argument that is not a tensor",),
    )


@message("SL0509", "a shape depends on values")
def value_shape(function: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"the shape of a result in `{function}` depends on values (boolean index, `nonzero`, `unique`)",
        span=span,
        notes=("layouts and plans are made from static shapes",),
        helps=("keep the shape: `torch.where(mask, x, 0)` or `masked_fill`",),
    )


@message("SL0510", "a function uses an autograd.Function")
def autograd_function(name: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{name}` is an `autograd.Function`: a trace would keep its forward and lose its backward",
        span=span,
        helps=("make it an operator with `torch.library.custom_op` and `register_autograd`, and give it an `sl.rule`",),
    )


@message("SL0511", "a function uses a tensor from outside")
def captured_tensor(function: str, shape: tuple[int, ...], parameter: bool, span: Span | None) -> Diagnostic:
    kind = "parameter" if parameter else "tensor"
    return Diagnostic(
        f"`{function}` uses a {kind} of shape {list(shape)} that is none of its arguments",
        span=span,
        notes=("a signature has to say where every tensor lives",),
        helps=("make it an argument with a spec, or make it inside the function",),
    )


@message("SL0512", "a function changes an argument in place")
def argument_changed(function: str, argument: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{function}` changes its argument `{argument.removesuffix('_1')}` in place",
        span=span,
        notes=("an argument's global value may be spread over ranks, or shared with the caller",),
        helps=("use the operator that returns a new tensor, and return it",),
    )


@message("SL0513", "a function changes a view in place")
def view_changed(function: str, operator: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{operator}` in `{function}` changes a tensor in place that shares storage with another",
        span=span,
        notes=("a view and its base may come to lie on different ranks",),
        helps=("use `torch.where`, `torch.cat` or the operator that returns a new tensor",),
    )


@message("SL0514", "a function returns something that is no tensor")
def result_not_tensor(function: str, kind: str) -> Diagnostic:
    return Diagnostic(
        f"`{function}` returns a `{kind}` where its signature promises a tensor",
        helps=("return tensors only, one for each result of the signature",),
    )


@message("SL0515", "a call or body does not match the signature")
def signature_mismatch(function: str, what: str, declared: int, given: int, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{function}` declares {declared} {what}{'' if declared == 1 else 's'} and got {given}",
        span=span,
    )


@message("SL0516", "an argument is no tensor")
def argument_not_tensor(function: str, argument: str, kind: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"argument `{argument}` of `{function}` is declared as a tensor and got a `{kind}`",
        span=span,
    )


@message("SL0517", "an operator's rule is wrong")
def rule_is_wrong(operator: str, layouts: Sequence[str], what: str) -> Diagnostic:
    return Diagnostic(
        f"the rule of `{operator}` is wrong: {what}",
        notes=tuple(f"operand {i} was {text}" for i, text in enumerate(layouts)),
        helps=("mark factors that must be whole with `!` and factors that are summed with `+`",),
    )


@message("SL0518", "a rule does not match its operator")
def rule_does_not_match(operator: str, text: str, why: str, span: Span | None) -> Diagnostic:
    return Diagnostic(f"rule `{text}` does not match a call of `{operator}`: {why}", span=span)


@message("SL0519", "an operator draws random numbers")
def random_operator(operator: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{operator}` draws random numbers, which would differ between ranks",
        span=span,
        notes=("ranks hold parts of one global tensor, whose random values must not depend on how it is split",),
        helps=("use `rand_like`, `randn_like`, `bernoulli` or dropout (drawn by global index), or pass the tensor in",),
    )


@message("SL0520", "sl.reshard is given something that is no spec")
def spec_not_text(kind: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`sl.reshard` in a traced function takes a spec as text, and got a `{kind}`",
        span=span,
        helps=('write the layout: `sl.reshard(x, "[batch/dp seq d]")`',),
    )


@message("SL0521", "a signature names a parameter that the function does not have")
def unknown_parameter(function: str, name: str, known: Sequence[str], span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{function}` has no parameter `{name}`",
        span=span,
        notes=(f"its parameters are {quoted(known)}",) if known else (),
        helps=did_you_mean(name, known),
    )


@message("SL0522", "a tensor argument is not in the signature")
def undeclared_tensor(function: str, name: str, span: Span | None, *, given: bool = True) -> Diagnostic:
    what = "is a tensor that the signature does not name" if given else "has neither a spec nor a default"
    return Diagnostic(
        f"argument `{name}` of `{function}` {what}",
        span=span,
        helps=(f"add it to the signature: `{name}: whole`",),
    )


@message("SL0523", "a function was not compiled yet")
def not_called_yet(function: str) -> Diagnostic:
    return Diagnostic(
        f"`{function}` has no program yet",
        notes=("a program is made for the shapes and layouts of a call",),
        helps=(f"call it, or `{function}.program_for(..)` with tensors of the meta device",),
    )


@message("SL0524", "the law is broken")
def law_broken(kind: str, name: str, what: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{kind} {name}` does not give what one device gives: {what}",
        span=span,
        notes=("layouts never change a value; an operator's rule or a declared gradient is wrong",),
        helps=("try the rules of your own operators with `sl.check_rule`",),
    )


@message("SL0525", "no Python function for a declared fn")
def no_function(name: str, module: str, known: Sequence[str], span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"module `{module}` has no function `{name}`",
        span=span,
        helps=did_you_mean(name, known),
    )


@message("SL0526", "a module of functions that cannot be imported")
def no_module(module: str, why: str) -> Diagnostic:
    return Diagnostic(
        f"module `{module}` cannot be imported: {why}",
        helps=("run from the folder that holds it, or set `PYTHONPATH`",),
    )


@message("SL0527", "no axis is left for an open dim")
def no_open_axis(tensor: str, mesh: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"no mesh axis is left for `/?` in {tensor}",
        span=span,
        notes=(f"the mesh is {mesh}; an axis must be unused in the tensor, of more than one rank, and divide the dim",),
        helps=("write the axis, or leave the dim whole",),
    )


@message("SL0528", "an argument lives on another mesh than the function")
def other_mesh(function: str, argument: str, given: str, declared: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"argument `{argument}` of `{function}` lives on the mesh {given}, and the function is for {declared}",
        span=span,
        helps=("bring it over with `sl.reshard(x, spec, mesh)`, or decorate the function with the tensor's own mesh",),
    )


@message("SL0529", "the solver library that a choice of layouts needs is absent")
def no_solver(function: str) -> Diagnostic:
    return Diagnostic(
        f"the layouts of `{function}` cannot be chosen without a solver library",
        notes=("its values hang together too closely to be chosen one after the other; scipy brings a solver",),
        helps=("pip install 'shardlang[auto]'", 'or say some layouts in the body with `sl.reshard(x, "[..]")`'),
    )


@message("SL0530", "autocast that a trace does not record")
def autocast(device: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"autocast for `{device}` would be lost in a compiled function",
        span=span,
        notes=(
            "a body is traced on tensors without values of the CPU; autocast of the CPU around the whole call is kept",
        ),
        helps=(
            "cast in the body with `x.to(torch.bfloat16)`, or pass tensors of that dtype",
            "in a model, write `param bf16` in the braces of an `fsdp` line",
        ),
    )


@message("SL0531", "an argument that no program can be kept for")
def argument_without_hash(function: str, argument: str, kind: str) -> Diagnostic:
    return Diagnostic(
        f"argument `{argument}` of `{function}` is a {kind}, which has no hash",
        notes=("a program is made for the values of the arguments that are no tensors, and found again by them",),
        helps=("pass numbers, strings, flags, or tuples, lists and dicts of these",),
    )


@message("SL0532", "a function whose parameters Python cannot tell")
def no_signature(function: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"Python cannot tell the parameters of `{function}`, and a signature goes by their names",
        span=span,
        helps=("write a function with the parameters of the signature that calls it",),
    )
