"""Byte streams on disk: the format of their files, and reading them; ``docs/formats/byte-stream.md`` to the byte."""
