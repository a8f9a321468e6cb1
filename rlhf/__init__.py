"""The RLHF algorithms on tensors: pure mathematics first, then the loops that use it."""
