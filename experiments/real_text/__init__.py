"""Real text through the whole pipeline, on a model that knows English."""
