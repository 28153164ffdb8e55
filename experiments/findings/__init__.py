"""Questions that neither paper answers, each with its runs, its picture and its answer in words."""
