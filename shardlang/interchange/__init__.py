"""Other notations, read and written as ``.shard`` text: JAX's PartitionSpecs and transformers' plans.

Each reader takes JSON and gives the text of a file and what could not be said. ``spec/import.md`` has the forms.
"""

from attrs import frozen

from shardlang.diagnostics import Diagnostic


@frozen
class Imported:
    """A text, formatted, and what was left out of it or guessed. The text is empty where nothing could be said."""

    text: str
    diagnostics: tuple[Diagnostic, ...] = ()


__all__ = ["Imported"]
