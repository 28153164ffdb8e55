"""Data files of the shipped cost models."""
