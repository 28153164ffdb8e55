"""What margins cost and save when steps do not take what was predicted."""
