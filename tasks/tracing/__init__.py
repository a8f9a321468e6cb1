"""What a model was made from, followed through the hashes of `dvc.lock`, and where it is now."""
