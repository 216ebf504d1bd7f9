"""Any bytes are a program or a diagnostic: never another exception, never a hang."""

import random
import time
from contextlib import suppress
from functools import lru_cache

import pytest

from shardlang.check import check
from shardlang.diagnostics import REGISTRY, Diagnostic, ShardlangError
from shardlang.diagnostics.render import render
from shardlang.source import Source
from shardlang.syntax.decode import decode
from shardlang.syntax.format import format_source
from shardlang.syntax.parse import parse, parse_axes, parse_change, parse_signature, parse_spec
from tests.syntax import corpus
from tests.syntax.texts import DESIGN, RARE

TOKENS = """
link mesh split let rules fn reshard model transfer budget rule on from ranks grad whole else max avg
param call fsdp checkpoint compile freeze over replicate eager memory peak forbid root otherwise bf16
= => -> <= : , ; . .. ... / // * + - ~ ? ! @ _ ( ) [ ] { } # ' " \\ é 日本 →
0 1 007 4096 9223372036854775808 1.5 1.0x 450 GB/s 3 us 60 GiB 2kv a.b *.** {a,b} [0..3] a:b aten.mm
"""
BLANKS = ("\n", "\t", "\r\n", "\r", "\u202e", "\ufeff", "\x00", "\x1b", "\u00a0", "=" * 50, "(" * 50, "a" * 300)
WORDS = (*TOKENS.split(), *BLANKS)
SEEDS = (DESIGN, RARE, corpus.EVERYTHING, corpus.WORDS_AS_NAMES)


@lru_cache(maxsize=64)
def walked(seed: int) -> str:
    return corpus.walk(seed)


def generated(draw: random.Random) -> bytes:
    """One text of these kinds: a walk through the grammar, mutated texts, a heap of words, arbitrary characters."""
    kind = draw.randrange(5)
    if kind == 0:
        return walked(draw.randrange(64)).encode()
    if kind == 1:
        return mutated(draw, draw.choice((*SEEDS, walked(draw.randrange(64)))))
    if kind == 2:
        return "".join(draw.choice(WORDS) + draw.choice(("", " ", "\n")) for _ in range(draw.randrange(60))).encode()
    if kind == 3:
        return draw.randbytes(draw.randrange(200))
    characters = chr(draw.choice((draw.randrange(128), draw.randrange(0x800), draw.randrange(0xE000, 0x10FFFF))))
    return "".join(characters * draw.randrange(9) + draw.choice(WORDS) for _ in range(draw.randrange(20))).encode()


def mutated(draw: random.Random, text: str) -> bytes:
    """A part of a text with pieces taken out, doubled, moved, or words and bytes put in."""
    data = bytearray(text.encode())
    start = draw.randrange(len(data))
    data = data[start : start + draw.randrange(400)] if draw.randrange(3) else data
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(data) + 1)
        piece = data[at : at + draw.randrange(1, 20)]
        action = draw.randrange(5)
        if action == 0:
            del data[at : at + len(piece)]
        elif action == 1:
            data[at:at] = piece * draw.randrange(1, 5)
        elif action == 2:
            data[at:at] = draw.choice(WORDS).encode()
        elif action == 3:
            data[at : at + 1] = draw.randbytes(1)
        else:
            to = draw.randrange(len(data) + 1)
            data[to:to] = piece
    return bytes(data)


def outcome(data: bytes) -> tuple[Diagnostic, ...]:
    """The diagnostics of some bytes, after every stage that they reach."""
    try:
        source = decode("fuzz.shard", data)
        file = parse(source)
        assert parse(Source("again", format_source(source))) == file
        check(file, nproc=64)
    except ShardlangError as error:
        return error.diagnostics
    return ()


def hold(count: int, seed: int) -> None:
    draw = random.Random(seed)
    succeeded = 0
    for _ in range(count):
        data = generated(draw)
        begun = time.perf_counter()
        try:
            diagnostics = outcome(data)
        except Exception as fault:
            raise AssertionError(f"{data!r}") from fault
        succeeded += not diagnostics
        for diagnostic in diagnostics:
            assert diagnostic.code in REGISTRY, data
            assert diagnostic.span is not None, data
            assert 0 <= diagnostic.span.start <= diagnostic.span.end <= len(diagnostic.span.source.text), data
            text = render(diagnostic)
            assert "\x1b" not in text, data
        assert time.perf_counter() - begun < 10, data
    assert succeeded


def test_two_thousand_texts_are_programs_or_diagnostics() -> None:
    hold(2_000, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_hundred_thousand_texts_are_programs_or_diagnostics(seed: int) -> None:
    hold(20_000, seed)


@pytest.mark.parametrize("read", [parse_spec, parse_signature, parse_change, parse_axes])
def test_pieces_are_read_or_refused(read) -> None:
    draw = random.Random(3)
    for _ in range(200):
        source = Source("<argument>", generated(draw).decode("utf-8", "replace"))
        with suppress(ShardlangError):
            read(source)


LARGE = {
    "brackets": "let a = " + "(" * 20_000,
    "nested and closed": "let a = " + "(" * 10_000 + "1" + ")" * 10_000,
    "nested on the right": "let a = " + "(1+" * 10_000 + "1" + ")" * 10_000,
    "one long sum": "let a = " + "1+" * 10_000 + "1",
    "one long spec": "fn f(x: [" + "a " * 10_000 + "]) -> [b]",
    "many cuts": "fn f(x: [a" + "/b" * 10_000 + "]) -> [b]",
    "digits": "let a = " + "1" * 500_000,
    "one word": "a" * 500_000,
    "blanks": " " * 500_000 + "$",
    "a long path": "model m on p { param " + "a." * 200_000 + "a : whole }",
    "a path of braces": "model m on p { param " + "{a," * 20_000 + "a : whole }",
    "stars": "model m on p { param " + "*" * 20_000 + " : whole }",
    "quotes": "fn f(x: " + '"' * 300_000,
    "many broken lines": "model m on p {\n" + " param a : [\n" * 20_000,
    "many broken declarations": "fn f(\n" * 10_000,
    "lines": "\n" * 500_000 + "$",
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_texts_take_bounded_time(kind: str) -> None:
    begun = time.perf_counter()
    assert len(message_of(LARGE[kind])) < 100_000
    assert time.perf_counter() - begun < 20


def message_of(text: str) -> str:
    try:
        parse(Source("large.shard", text))
    except ShardlangError as error:
        return str(error)
    return ""
