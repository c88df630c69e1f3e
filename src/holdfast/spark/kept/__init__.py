"""The kept worker: a process beside the driver for small epochs in which functions of the user are called."""
