"""The pipeline as a Prefect flow: order, retries, waiting, and what people see of it."""
