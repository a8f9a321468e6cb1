"""The preference data set: read strictly, made into pairs, split by prompt, let pass or not."""
