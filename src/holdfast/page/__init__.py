"""The web page: what a run, or the checkpoint that is left of one, says of itself (design/0049, section 6)."""
