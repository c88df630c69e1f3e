"""Stateless operators: one kind per module, each a frozen declaration and the function that users call."""
