"""What differs between two locks, in words that say what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardlang.diagnostics.prose import plural
from shardlang.diagnostics.sl06_budgets import size_text
from shardlang.report.lock import Lock, ModelLock, ParameterLock, numberless


def differences(old: Lock, new: Lock) -> list[str]:
    """One line for each difference; none where both say the same."""
    found = list(_named("mesh", old.meshes, new.meshes))
    for name in _both("reshard", old.reshards, new.reshards, found):
        if old.reshards[name] != new.reshards[name]:
            found.append(
                f"reshard `{name}`: {'; '.join(old.reshards[name]) or 'nothing'}"
                f" -> {'; '.join(new.reshards[name]) or 'nothing'}"
            )
    for name in _both("model", old.models, new.models, found):
        found += [f"model `{name}`: {text}" for text in _model(old.models[name], new.models[name])]
    return found


def _named(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    lost: list[str] = []
    for name in _both(kind, old, new, lost):
        if old[name] != new[name]:
            yield f"{kind} `{name}`: {old[name]} -> {new[name]}"
    yield from lost


def _both(kind: str, old: Mapping[str, object], new: Mapping[str, object], found: list[str]) -> list[str]:
    """The names on both sides; what is on one side only is a difference."""
    found += [f"{kind} `{n}` is gone" for n in old if n not in new]
    found += [f"{kind} `{n}` is new" for n in new if n not in old]
    return [n for n in old if n in new]


def _model(old: ModelLock, new: ModelLock) -> Iterator[str]:
    if old.mesh != new.mesh:
        yield f"on mesh `{new.mesh}`, before on `{old.mesh}`"
    for kind, axes in sorted({*old.collectives, *new.collectives}):
        (n, a), (m, b) = old.collectives.get((kind, axes), (0, 0)), new.collectives.get((kind, axes), (0, 0))
        if (n, a) != (m, b):
            yield f"{kind} over {axes}: {change(a, b)} a step" + (f", {n} -> {m} of them" if n != m else "")
    for part in dict.fromkeys([*old.memory, *new.memory]):
        a, b = old.memory.get(part, 0), new.memory.get(part, 0)
        if a != b:
            yield f"memory for {part}: {change(a, b)}"
    yield from _parameters(old.parameters, new.parameters)
    for module in dict.fromkeys([*old.calls, *new.calls]):
        before, after = old.calls.get(module), new.calls.get(module)
        if before != after:
            yield f"call {module}: {before or 'no line'} -> {after or 'no line'}"
    yield from _options(old.options, new.options)


def _options(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """What else is said of modules and parameters; the same change of those that differ in numbers only is one line."""
    changes: dict[tuple[str, str, str], int] = {}
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name, ""), new.get(name, "")
        gone = [word for word in a.split(", ") if word and word not in b.split(", ")]
        come = [word for word in b.split(", ") if word and word not in a.split(", ")]
        if gone or come:
            key = numberless(name), ", ".join(gone), ", ".join(come)
            changes[key] = changes.get(key, 0) + 1
    for (path, gone_text, come_text), count in changes.items():
        many = f" ({plural(count, 'time')})" if count > 1 else ""
        yield f"`{path}`{many}: {gone_text or 'nothing'} -> {come_text or 'nothing'}"


def change(old: int, new: int) -> str:
    """``1.2 GiB more (3.4 GiB -> 4.6 GiB)``."""
    if old == new:
        return f"as before ({size_text(old)})"
    word = "more" if new > old else "less"
    return f"{size_text(abs(new - old))} {word} ({size_text(old)} -> {size_text(new)})"


def _parameters(old: Mapping[str, ParameterLock], new: Mapping[str, ParameterLock]) -> Iterator[str]:
    """The same change of parameters that differ in numbers only (layers) is one line."""
    changes: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for name in dict.fromkeys([*old, *new]):
        for text, a, b in _parameter(old.get(name), new.get(name)):
            changes.setdefault((numberless(name), text), []).append((a, b))
    for (path, text), sizes in changes.items():
        a, b = sum(a for a, _ in sizes), sum(b for _, b in sizes)
        count = f" ({plural(len(sizes), 'parameter')})" if len(sizes) > 1 else ""
        yield f"`{path}`{count} {text.format(change=change(a, b))}"


def _parameter(old: ParameterLock | None, new: ParameterLock | None) -> Iterator[tuple[str, int, int]]:
    """What differs, with the bytes before and after where ``{change}`` stands in the text."""
    if old is None or new is None:
        known = old or new
        assert known is not None
        yield ("is gone" if new is None else "is new"), 0, 0
        return
    if old.dtype != new.dtype:
        yield f"is {new.dtype}, before {old.dtype}", 0, 0
    if old.layout != new.layout:
        yield f"is laid out {new.layout}, before {old.layout}", 0, 0
    if old.stored != new.stored:
        yield "stores {change} on a rank", old.stored, new.stored
    if (old.group == "-") != (new.group == "-") or numberless(old.group) != numberless(new.group):
        yield f"is gathered with {_group(new.group)}, before with {_group(old.group)}", 0, 0
    if (old.gathers, old.links) != (new.gathers, new.links):
        links = new.links if new.gathers else old.links
        yield "gathers {change} a step" + ("" if links == "-" else f" on {links}"), old.gathers, new.gathers


def _group(module: str) -> str:
    return "nothing" if module == "-" else f"`{numberless(module)}`"
