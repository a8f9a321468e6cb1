"""The worlds that ship with RLHF Rounds; git ignores the prepared files beside them."""
