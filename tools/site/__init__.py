"""``python -m tools.site``: the documentation as a site, in ``site/``, built without a network (design/0053)."""
