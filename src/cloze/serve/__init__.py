"""The HTTP service: routes and schemas, a fair queue, and the thread that computes batches."""
