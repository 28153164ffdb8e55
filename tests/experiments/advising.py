"""Arguments that make an advice small enough for a test."""

QUICK = ("--jobs", "1", "--json", "--pipeline-depth", "1")

MIXED = ("--workload", "mixed", "--limit", "60", "--seeds", "6", "--slo", "ttft:300,tpot_p99:12", *QUICK)
