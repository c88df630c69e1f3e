"""What every stateful step uses: tables, keys, bounds, and the contract of a step."""
