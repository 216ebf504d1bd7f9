"""Random numbers by place: the value at a global index depends on seed, stream and index alone.

So a tensor has the same values on any mesh, whatever block a rank makes. The generator is a counter-based one after
Widynski, "Squares: a fast counter-based RNG" (2020): rounds of squaring and swapping halves of the index times a key.
Normal numbers are by Box and Muller (1958) with logarithm, sine and cosine summed here from additions, products and
divisions, which round alike in every block, as library functions need not at a block's ragged end.
"""

from __future__ import annotations

import math

import torch

from shardlang.layout import Runs

_CHUNK = 1 << 18
"""Elements made at a time: what is alive beside the result stays small."""
_LOW = 0xFFFFFFFF


def uniform(runs: tuple[Runs, ...], shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in [0, 1) for a block of a tensor of this global shape: multiples of 2**-24 (2**-53 in double)."""
    bits = 53 if dtype == torch.float64 else 24

    def make(index: torch.Tensor) -> torch.Tensor:
        return (squares(index, seed) >> (63 - bits)).double() * 2.0**-bits

    return _by_chunks(runs, shape, dtype, make)


def normal(runs: tuple[Runs, ...], shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of the normal distribution with mean 0 and deviation 1, for a block of a tensor of this global shape."""

    def make(index: torch.Tensor) -> torch.Tensor:
        first, second = squares(2 * index, seed), squares(2 * index + 1, seed)
        radius = torch.sqrt(-2 * _log(((first >> 10).double() + 0.5) * 2.0**-53))
        return radius * _cos_of_turns((second >> 10).double() * 2.0**-53)

    return _by_chunks(runs, shape, dtype, make)


def squares(index: torch.Tensor, seed: int) -> torch.Tensor:
    """63 random bits for each index (int64, not negative)."""
    key = _key(seed)
    y = index * key
    z = y + key
    x = y
    for add in (y, z, y, z):
        x = _swapped(x * x + add)
    # The last round keeps both halves; the sign bit goes.
    return (x ^ ((x * x + y) >> 32 & _LOW)) & 0x7FFFFFFFFFFFFFFF


def _swapped(x: torch.Tensor) -> torch.Tensor:
    return (x >> 32 & _LOW) | (x << 32)


def _key(seed: int) -> int:
    """An odd key with irregular bits, signed: two rounds of multiply and xor-shift over 64 bits."""
    x = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = ((x ^ (x >> 30)) * multiplier) & 0xFFFFFFFFFFFFFFFF
    x = (x ^ (x >> 31)) | 1
    return x - (1 << 64) if x >> 63 else x


def _by_chunks(runs: tuple[Runs, ...], shape: tuple[int, ...], dtype: torch.dtype, make: object) -> torch.Tensor:
    """Makes a block chunk by chunk of its flattened elements."""
    assert callable(make)
    sizes = [sum(b - a for a, b in r) for r in runs]
    result = torch.empty(math.prod(sizes), dtype=dtype)
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    indices = [torch.cat([torch.arange(a, b) for a, b in r]) if r else torch.empty(0, dtype=torch.int64) for r in runs]
    for start in range(0, result.numel(), _CHUNK):
        place = torch.arange(start, min(start + _CHUNK, result.numel()))
        index = torch.zeros_like(place)
        for size, stride, where in zip(reversed(sizes), reversed(strides), reversed(indices), strict=True):
            index += where[place % size] * stride
            place = torch.div(place, size, rounding_mode="floor")
        result[start : start + _CHUNK] = make(index).to(dtype)
    return result.view(sizes)


def _log(x: torch.Tensor) -> torch.Tensor:
    """The logarithm by the series of atanh around 1, with the exponent taken out. ``x`` is positive and normal."""
    mantissa, exponent = torch.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = torch.where(small, mantissa * 2, mantissa)
    exponent = exponent.double() - small.double()
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    total = torch.zeros_like(s)
    for odd in range(21, 0, -2):
        total = total * square + 1.0 / odd
    return 2 * s * total + exponent * math.log(2)


def _cos_of_turns(turns: torch.Tensor) -> torch.Tensor:
    """The cosine of ``turns`` (in [0, 1)) full turns, by Taylor's series within a quarter."""
    quarter = torch.floor(turns * 4)
    angle = (turns * 4 - quarter) * (math.pi / 2)
    square = angle * angle
    cosine, sine = torch.zeros_like(angle), torch.zeros_like(angle)
    for n in range(22, 0, -2):
        cosine = 1 - (cosine if n != 22 else 1) * square / ((n - 1) * n)
        sine = 1 - (sine if n != 22 else 1) * square / (n * (n + 1))
    sine = sine * angle
    value = torch.where(quarter % 2 == 0, cosine, sine)
    return torch.where((quarter == 1) | (quarter == 2), -value, value)
