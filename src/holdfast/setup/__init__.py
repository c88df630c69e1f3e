"""Before the first run: a look at the machine (``holdfast doctor``), and a new project (``holdfast new``).

Opens no session and starts no JVM (design/0050, sections 3 and 5).
"""
