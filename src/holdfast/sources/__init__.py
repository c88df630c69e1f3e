"""Sources: where rows come from, one system per file.  Users call them through ``hf.read``."""
