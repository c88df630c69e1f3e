"""What reads from a Kafka cluster and what writes to it have in common: its address, and what its errors mean."""
