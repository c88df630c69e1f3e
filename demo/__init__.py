"""The demo: real data, one pipeline, two unlike sinks, five SIGKILLs, every row exactly once."""
