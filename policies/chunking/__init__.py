"""Chunkings: how many prefill tokens a step takes."""
