"""The worlds that ship with RLHF Rounds; prepared files lie beside them, ignored by git."""
