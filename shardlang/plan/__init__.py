"""From one layout to another at the least cost: steps, cost model, search, exchange, bundles, certificates."""
