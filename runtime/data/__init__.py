"""Where tokens come from; each source is a pure function of a seed and an index."""
