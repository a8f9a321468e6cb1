"""The embedded default world: the support desk of a home-goods shop, written by our own code."""
