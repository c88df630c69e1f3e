"""Objects of S3, Google Cloud Storage and Azure, as a store."""
