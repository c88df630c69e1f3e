"""``read.kafka``: the topics of a Kafka cluster."""
