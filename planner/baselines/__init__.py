"""Searches that others are measured against, one file each."""
