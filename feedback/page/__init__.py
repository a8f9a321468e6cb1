"""The labelling page: the server, what it shows, and its security."""
