"""The labelling database: rounds, assignments, submissions, accounts."""
