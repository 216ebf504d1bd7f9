"""``auto``: the layouts of a function's values, chosen for the least modelled time of the whole program."""
