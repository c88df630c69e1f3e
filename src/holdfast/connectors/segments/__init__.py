"""The segments sink: rows grow in a journal, and seal into one well-sized file for each partition, when it is due."""
