"""``write.byte_stream``: timestamped binary messages and their time index, committed together."""
