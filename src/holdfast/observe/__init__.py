"""What users see of a run: progress, log, and the state of a checkpoint."""
