"""What an editor asks of a text, as functions of the text alone: diagnostics, hover, definitions, completion.

No protocol is known here; ``shardlang.lsp`` speaks it. Every answer holds for any text, broken ones included.
"""
