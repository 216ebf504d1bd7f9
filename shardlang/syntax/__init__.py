"""Text to tree and back: grammar, typed tree with spans, parser, formatter."""
