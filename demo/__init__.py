"""The demo: real data, one pipeline with state, two unlike kinds of sinks, five SIGKILLs, every row exactly once."""
