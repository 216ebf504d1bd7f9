"""Checking: names, sizes, patterns and budgets; a syntax tree becomes a ``Program``."""

from shardlang.check.declarations import check, check_signature
from shardlang.check.program import Program
from shardlang.check.scope import Scope
from shardlang.check.sizes import Sizes
from shardlang.check.specs import check_spec

__all__ = ["Program", "Scope", "Sizes", "check", "check_signature", "check_spec"]
