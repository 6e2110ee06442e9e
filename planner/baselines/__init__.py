"""Searches people use instead, and the exhaustive oracle."""
