"""What the command line and Python say beside a transition, each a text: links, meshes, and the splits of axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardlang.check.meshes import check_links, check_mesh
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.mesh import Link, Mesh
from shardlang.source import Source
from shardlang.syntax import tree
from shardlang.syntax.parse import parse, parse_axes


def read_links(texts: Iterable[str], called: str = "<--link>") -> dict[str, Link]:
    """The links of ``ib = 50 GB/s, 12 us``, with or without ``link`` before it. Raises ShardlangError."""
    errors: list[Diagnostic] = []
    links = check_links((d for d in _declared(texts, called, "link") if isinstance(d, tree.Link)), errors)
    if errors:
        raise ShardlangError(errors)
    return links


def read_splits(texts: Iterable[str], called: str = "<--split>") -> tuple[tree.Split, ...]:
    """The splits of ``tp = tp0:2 * tp1:4``; as in a file, ``split pod.tp = ..``, whatever the mesh is called there.

    Raises ShardlangError.
    """
    return tuple(d for d in _declared(texts, called, "split", "mesh.") if isinstance(d, tree.Split))


def _declared(texts: Iterable[str], called: str, keyword: str, prefix: str = "") -> Iterable[tree.Decl]:
    for text in texts:
        whole = text.split()[:1] == [keyword]
        yield from parse(Source(called, text if whole else f"{keyword} {prefix}{text}")).decls


def read_mesh(
    text: str,
    splits: Iterable[tree.Split] = (),
    links: Mapping[str, Link] = {},
    *,
    called: str = "<mesh>",
    first_rank: int = 0,
) -> Mesh:
    """The mesh of ``a:2 * b:4@ib``. Raises ShardlangError with all that is wrong in it and in its splits."""
    return check_mesh(parse_axes(Source(called, text)), splits, links, first_rank=first_rank)
