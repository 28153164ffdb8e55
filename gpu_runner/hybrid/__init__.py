"""PrefillOnly's hybrid prefilling: token-wise layers in chunks, attention whole, the suffix's KV thrown away."""
