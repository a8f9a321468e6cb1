"""What the stages of `tasks.evaluate` measure policies with."""
