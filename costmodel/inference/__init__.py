"""Prices of inference: prefill, decoding, key-value cache. No training state in it."""
