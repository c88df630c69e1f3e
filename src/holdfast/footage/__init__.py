"""Video in byte streams without a pipeline: files into them, files and pictures out of them."""
