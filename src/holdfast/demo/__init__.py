"""The demo: one pipeline with state, two unlike kinds of sinks, five SIGKILLs, every row exactly once.

``holdfast demo`` runs it on data that it generates; ``make demo`` of a clone on real data, and on more systems
(design/0050, section 4).
"""
