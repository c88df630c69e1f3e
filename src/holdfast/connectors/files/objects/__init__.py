"""Files in S3: tasks upload them, one log entry commits an epoch, completing the uploads makes it visible."""
