"""Tree to program: names, sizes, patterns, budgets."""
