"""The errors with which training stops itself; the stage that runs it exits with code 3."""


class TrainingStopped(RuntimeError):
    """Training stopped itself, since continuing would do harm; the message says why."""


class NonFiniteError(TrainingStopped):
    """A loss, gradient, weight, score or logit is NaN or infinite."""


class SelfCheckError(TrainingStopped):
    """A property that training relies on does not hold; the message names the check."""
