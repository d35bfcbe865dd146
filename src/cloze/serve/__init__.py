"""Models behind HTTP: a batcher that knows no HTTP, and an app that knows little else."""
