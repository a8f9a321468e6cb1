"""The stages of the pipeline: one module per DVC stage, files in, files out."""
