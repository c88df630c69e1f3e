"""Avro values of Kafka messages, with the id of their schema in a registry before them."""
