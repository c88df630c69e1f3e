"""``read.byte_stream``: messages of a store, from any random access point on."""
