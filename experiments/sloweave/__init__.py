"""SLOWeave (arXiv 2609.07883v1): its tables and figures, regenerated."""
