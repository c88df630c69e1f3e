"""Many messages at a time, by librdkafka's own functions: no Python object for each.  Knows no sink and no source."""
