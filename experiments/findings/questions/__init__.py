"""One question per module, with TOML files of the same name; :mod:`experiments.findings.catalogue` finds them."""
