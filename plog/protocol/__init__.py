"""The Kafka protocol: messages declared once, their codec, headers, and batches in messages."""
