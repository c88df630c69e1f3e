"""Commands that ask sinks which rows they hold."""
