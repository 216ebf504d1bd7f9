"""Texts of the language for tests that look at every token: written ones, and random walks through the grammar."""

from __future__ import annotations

import random
from pathlib import Path

from lark import Token

from shardlang.syntax.grammar import parser

ROOT = Path(__file__).parents[2]

EVERYTHING = """\
link nvlink = 450 GB/s, 3 us                       # bandwidth per device and direction, latency
link ib     = 50 GB/s, 12 us

mesh pod = dp:?@ib * fsdp:4@nvlink * tp:8@nvlink   # major to minor
mesh serve = tp:8@nvlink ranks 0..7
split pod.tp = tp0:2 * tp1:4

let d = 4096, f = 4*d, kv = 8, g = 4, k = d//(kv*g)

rules on pod {
  batch -> dp/fsdp
  kv, f -> tp
  vocab -> tp else whole
}

fn mlp on pod (x: bf16[batch/dp seq d], w1: bf16[d f/tp], w2: bf16[f/tp d]) -> bf16[batch/dp seq d]
fn many on pod (x: [... _ seq/.], y: whole, z: [(3 kv/tp k)/fsdp 4*d]{+tp, avg dp}) -> (out: [vocab/~tp d/?], _, whole)
fn grads on pod (w: f32[d f/tp] grad {+dp}, v: whole grad [d], u: [d] grad whole) -> [d]{max tp}

reshard cache on pod: bf16[b/dp s kv/tp 128] => [b/dp s/tp kv 128]

model llama from examples.llama.model:build on pod {
  param tok_embeddings.weight                 : [vocab/tp d]
  param layers.*.attention.{wk,wv}.weight     : [(kv/tp k) d]
  param layers.[0..3].**                      : [d f/tp]
  param otherwise                             : whole
  call  root (tokens: [batch/dp/fsdp seq]) -> [batch/dp/fsdp seq vocab/tp]
  call  layers.*.attention (x: [batch/dp/fsdp seq d], mask: whole) -> (y: [batch/dp/fsdp seq/tp d], _) eager
  checkpoint layers.*
  compile layers.* { backend inductor }
  fsdp  layers.* over fsdp replicate dp { param bf16, reduce f32, reshard yes, prefetch 1 }
  fsdp  root     over fsdp replicate dp { reshard no }
  freeze tok_embeddings.**
}

transfer llama => llama_serve

budget llama { memory <= 60 GiB; forbid all_gather on ib; peak <= 1.0x }

rule aten.mm: [i k+] [k+ j] -> [i j]
rule mylib::fused.default: [... (g k!) 3] [k!] -> [... g] [g]
"""
"""Every construct of the language."""

WORDS_AS_NAMES = """\
link link = 1 GB/s, 1 us
mesh mesh = mesh:2@link * rules:3 * on:2 ranks 0..11
split mesh.on = ranks:1 * max:2
let let = 2, grad = let*2, else = (let + grad)//let
rules on mesh { else, whole -> rules/mesh else whole model -> on }
fn fn (whole: [else/mesh whole min/max], grad: whole, avg: [_a _1])
  -> (on: f32[param call/rules]{+mesh, max on} grad {min mesh}, _, model: whole)
reshard from on mesh: [fsdp/mesh over] => [fsdp over/mesh]
model model from from.on:fn on mesh {
  param param.fsdp : [call/mesh freeze]
  call call (call: [fsdp], param: whole) -> (fsdp: [eager])
  fsdp fsdp over mesh/rules replicate on { param bf16, prefetch 2, reshard 4, offload no }
  checkpoint call.param
  compile compile.call { backend compile }
  freeze freeze
}
transfer model => transfer
budget budget { peak <= 2x; memory <= 1 GiB; forbid forbid on on; }
rule rule: [rule+ (let model!)] -> [model]
"""
"""Keywords where names can stand."""


def written() -> dict[str, str]:
    """The written texts by name: those above, and the files of the examples."""
    texts = {"everything": EVERYTHING, "words as names": WORDS_AS_NAMES}
    for path in sorted((ROOT / "examples").rglob("*.shard")):
        texts[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    return texts


def tokens(text: str, start: str = "start") -> list[Token]:
    """The tokens of a text that is right, as the parser's own contextual lexer has them."""
    state = parser().parse_interactive(text, start)
    found = []
    for token in state.lexer_thread.lex(state.parser_state):
        state.feed_token(token)
        found.append(token)
    state.feed_eof()
    return found


_SAMPLES = {
    "NAME": ("d", "tp", "seq2", "_x", "mesh", "on", "whole_", "rules", "grad", "let", "param", "fsdp", "bf16", "max"),
    "INT": ("0", "1", "16", "4096"),
    "QUANTITY": ("450 GB/s", "3us", "1.5\tGiB"),
    "RATIO": ("1.0x", "2x"),
    "REFERENCE": ("pkg.mod:build", "m:f"),
    "OPERATOR": ("aten.mm", "lib::op.default", "rule"),
    "PATH": ("layers.*.w", "a.{b, c}.[0..3].**", "root", "otherwise", "0.weight"),
    "UNNAMED": ("_",),
}
_BLANKS = (" ", " ", " ", "\n", "\t", "\r\n", "  # a comment: [x/tp] => {\n")
_CLOSERS = ("$END", "RBRACE", "RSQB", "RPAR", "WHOLE")


def walk(seed: int, length: int = 60) -> str:
    """A text of the language: at each place one of the terminals that the parser accepts there, then a blank.

    After ``length`` tokens what closes comes first. The text may be cut short where the walk ends in no end.
    """
    draw = random.Random(seed)
    state = parser().parse_interactive("", "start")
    signs = {t.name: t.pattern.value for t in parser().terminals}
    parts: list[str] = []
    for step in range(length * 4):
        accepted = sorted(state.accepts() - {"$END"})
        if step >= length:
            if "$END" in state.accepts():
                break
            accepted = [c for c in _CLOSERS if c in accepted][:1] or accepted
        kind = draw.choice(accepted)
        text = _text(kind, signs, draw)
        state.feed_token(Token(kind, text, start_pos=0, end_pos=0))
        parts += [text, draw.choice(_BLANKS)]
    return "".join(parts)


def _text(kind: str, signs: dict[str, str], draw: random.Random) -> str:
    if kind in _SAMPLES:
        return draw.choice(_SAMPLES[kind])
    if kind.isalpha() and kind.lower() in signs[kind]:
        return kind.lower()
    return signs[kind].replace("\\", "")
