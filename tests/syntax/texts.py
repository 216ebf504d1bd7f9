"""Texts that several tests read."""

DESIGN = """\
link nvlink = 450 GB/s, 3 us                       # bandwidth per device and direction, latency
link ib     = 50 GB/s, 12 us

mesh pod = dp:?@ib * fsdp:4@nvlink * tp:8@nvlink   # major to minor; `?` takes what the launch has left
mesh serve = tp:8@nvlink ranks 0..7
split pod.tp = tp0:2 * tp1:4                       # named sub-axes, major to minor: `/tp` is `/tp0/tp1`

let d = 4096, f = 4*d, kv = 8, g = 4, k = d//(kv*g)   # a name without `let` is bound by unification

rules on pod {                                     # logical dim -> axes, for dims whose spec names no axis
  batch -> dp/fsdp
  kv, f -> tp
  vocab -> tp else whole                           # a fallback is written, never silent
}

fn mlp on pod (x: bf16[batch/dp seq d], w1: bf16[d f/tp], w2: bf16[f/tp d]) -> bf16[batch/dp seq d]

reshard cache on pod: bf16[b/dp s kv/tp 128] => [b/dp s/tp kv 128]

model llama from examples.llama.model:build on pod {      # `from` may be left out and given by `--model`
  param tok_embeddings.weight                 : [vocab/tp d]
  param layers.*.attention.wq.weight          : [(kv/tp g k) d]      # whole groups of query heads
  param layers.*.attention.{wk,wv}.weight     : [(kv/tp k) d]
  param layers.*.attention.wo.weight          : [d (kv/tp g k)]
  param layers.*.feed_forward.{w1,w3}.weight  : [f/tp d]
  param layers.*.feed_forward.w2.weight       : [d f/tp]
  param output.weight                         : [vocab/tp d]
  param otherwise                             : whole
  call  root (tokens: [batch/dp/fsdp seq]) -> [batch/dp/fsdp seq vocab/tp]
  call  layers.*.attention (x: [batch/dp/fsdp seq d]) -> [batch/dp/fsdp seq/tp d]
  checkpoint layers.*                                                # activation checkpointing
  fsdp  layers.* over fsdp replicate dp { param bf16, reduce f32, reshard yes, prefetch 1 }
  fsdp  root     over fsdp replicate dp { reshard no }
  freeze tok_embeddings.**
}

transfer llama => llama_serve                      # the same weights in another model's layouts, on another mesh

budget llama { memory <= 60 GiB; forbid all_gather on ib; peak <= 1.0x }

rule aten.mm: [i k+] [k+ j] -> [i j]
"""

RARE = """\
link slow = 0.5 MiB/s, 2.5 ms
mesh one = a:1
mesh keyed = fsdp:2 * tp:2 ranks 4..7
let a = (1 + 2)*3, b = 8//2//2, c = 8//(4//2), e = a + b*c
rules on one { }
fn none() -> whole
fn pair(x: f32[_ (3 kv/tp k)/fsdp seq/.]{+tp, avg dp} grad {+dp}, y: [... d/~tp e/?]) -> (a: [d] grad [d/tp], [], _)
fn wide(whole: whole grad whole, x: [2*d*3/tp]{max tp}) -> (whole: [d]{min tp}, whole)
reshard r: [] => []
model m on one {
  param layers.[0..3].{w1,w2}.** : [d]
  call layers.0 (x: [d]) -> (hidden: [d], _) eager
  fsdp ** over fsdp/dp { output bf16, offload yes, reshard 4 }
  fsdp root over fsdp { }
}
model empty on one { }
budget m { }
budget m { peak <= 2.5x; }
rule mylib::flash.default: [... b! (h k+)] [1 k+] -> [b] [h! ...]
"""
