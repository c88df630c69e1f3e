"""A query of Nexmark in each module: its rows, and the key of its result where that changes."""
