"""What reads segments: a source of pipelines, and a dataset outside of one."""
