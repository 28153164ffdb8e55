"""PrefillOnly (arXiv 2505.07203v1): its tables and figures, regenerated."""
