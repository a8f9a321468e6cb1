"""The preference data set: strict reading, pairs from judgments, splits by prompt, validation."""
