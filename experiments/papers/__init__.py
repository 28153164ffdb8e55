"""Both papers, figure by figure, with ours and a verdict: ``docs/papers.md``."""
