"""What can be restored: the store that keeps Holdfast's small durable objects."""
