"""Blocks of layouts by counting indices one by one: slow, and written without the package that it judges."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping

from attrs import frozen

Sizes = Mapping[str, int]
"""The axes of a mesh, major to minor."""


@frozen
class Cut:
    axis: str
    uneven: bool = False


@frozen
class Dim:
    """Factors (a size and the axes that cut it) and then cuts of what is left."""

    factors: tuple[tuple[int, tuple[str, ...]], ...]
    flat: tuple[Cut, ...] = ()

    @property
    def size(self) -> int:
        return math.prod(size for size, _ in self.factors)


def coordinates(axes: Sizes) -> list[dict[str, int]]:
    """The coordinates of each rank."""
    return [dict(zip(axes, c, strict=True)) for c in itertools.product(*(range(k) for k in axes.values()))]


def chunk(items: list[int], ways: int, index: int) -> list[int]:
    step = -(-len(items) // ways)
    return items[index * step : (index + 1) * step]


def held(dim: Dim, axes: Sizes, at: Mapping[str, int]) -> list[int]:
    """The indices of a dim that a rank holds."""
    digits = []
    for size, cuts in dim.factors:
        digit = list(range(size))
        for axis in cuts:
            digit = chunk(digit, axes[axis], at[axis])
        digits.append(digit)
    indices = []
    for values in itertools.product(*digits):
        index = 0
        for value, (size, _) in zip(values, dim.factors, strict=True):
            index = index * size + value
        indices.append(index)
    for cut in dim.flat:
        indices = chunk(indices, axes[cut.axis], at[cut.axis])
    return indices


def runs(indices: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1][1] += 1
        else:
            found.append([index, index + 1])
    return found


def blocks(dims: tuple[Dim, ...], axes: Sizes) -> list[list[list[list[int]]]]:
    return [[runs(held(dim, axes, at)) for dim in dims] for at in coordinates(axes)]


def missing(source: tuple[Dim, ...], target: tuple[Dim, ...], axes: Sizes) -> int:
    """Elements that the worst rank needs and does not hold."""
    worst = 0
    for at in coordinates(axes):
        before = [set(held(dim, axes, at)) for dim in source]
        after = [set(held(dim, axes, at)) for dim in target]
        both = math.prod(len(b & a) for b, a in zip(before, after, strict=True))
        worst = max(worst, math.prod(map(len, after)) - both)
    return worst


def mesh_text(axes: Sizes) -> str:
    return " * ".join(f"{name}:{size}" for name, size in axes.items())


def spec_text(dims: tuple[Dim, ...]) -> str:
    return "[" + " ".join(_dim_text(dim) for dim in dims) + "]"


def _dim_text(dim: Dim) -> str:
    parts = ["/".join([str(size), *cuts]) for size, cuts in dim.factors]
    text = parts[0] if len(parts) == 1 else f"({' '.join(parts)})"
    return text + "".join(f"/{'~' if c.uneven else ''}{c.axis}" for c in dim.flat)


def draw(random_: random.Random, shape: list[list[int]], axes: Sizes, *, uneven: bool) -> tuple[Dim, ...]:
    """A layout of dims with these factors that divides where it must; every axis is used once at most."""
    free = list(axes)
    random_.shuffle(free)
    free = free[: random_.randint(0, len(free))]
    dims = []
    for index, factors in enumerate(shape):
        left = dict(enumerate(factors))
        cuts: dict[int, list[str]] = {i: [] for i in left}
        flat: list[Cut] = []
        takes = free if index == len(shape) - 1 else [a for a in free if random_.random() < 0.5]
        for axis in takes:
            free = [a for a in free if a != axis]
            whole = [i for i, n in left.items() if n % axes[axis] == 0]
            if whole and not flat and random_.random() < 0.7:
                factor = random_.choice(whole)
                cuts[factor].append(axis)
                left[factor] //= axes[axis]
            elif uneven:
                flat.append(Cut(axis, uneven=True))
        dims.append(Dim(tuple((n, tuple(cuts[i])) for i, n in enumerate(factors)), tuple(flat)))
    return tuple(dims)
