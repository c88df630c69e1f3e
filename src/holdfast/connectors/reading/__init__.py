"""What sources of several systems share: bounds, row ids, ends, deferred rows."""
