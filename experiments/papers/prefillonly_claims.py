"""What PrefillOnly's text claims, each with ours and the verdict."""

from __future__ import annotations

from experiments.papers.entries import (
    INPUT,
    NOT,
    NOT_COMPARABLE,
    Entry,
    committed,
    link,
    listed,
    of_comparisons,
    page_link,
    times,
)
from experiments.papers.prefillonly import NAMES, PAGE, PART, POST, of_ratios, ratios_text

NEAR = 0.2
"""By how much a single number may differ: that of Table 2."""


def claims() -> list[Entry]:
    """Return the claims of the abstract and of the text that are about a number or an order."""
    return [
        Entry(
            "1.4 to 4.0 times the QPS",
            "at equal mean and at equal P99 latency, over all baselines",
            f"it hangs on how requests arrive, which the paper does not say: {ratios_text(['mean', 'P99'])} "
            f"({link(PART, 'ratios')}, {page_link(PAGE, PAGE)})",
            of_ratios(["mean", "P99"]),
        ),
        _five_times(),
        _eight_point_seven(),
        _memory(
            "KV discarding alone", "without hybrid prefilling it takes 1.6 times the length of whole prompts, on an L4"
        ),
        _below_two(),
        _memory("hybrid prefilling, peak lower", "about 2 GB at 32,768 tokens"),
        _memory("100,000 tokens' KV", "the KV of 100,000 tokens of Llama-3.1-8B takes about 12 GB"),
        Entry(
            "14 % less throughput by chunks",
            "chunked prefill, 20,000 tokens in chunks of 512",
            "the one number that the cost model is calibrated on "
            "([`chunk_attention`](../costmodels/data/prefill/efficiency.json)); how to measure it on a GPU is in "
            f"{page_link('hybrid.md', 'hybrid.md', 'On a GPU')}",
            INPUT,
        ),
        _decoding(),
        _proxy(),
        _low_load(),
        _no_batching(),
        _throttling(),
        Entry(
            "§9, offloading and separate prefill nodes",
            "future work",
            f"offloaded suffixes were run ({link('prefillonly-more', 'left-out-suffixes')}); separate prefill nodes "
            "are out of scope",
            NOT_COMPARABLE,
        ),
    ]


def _size(paper: float, ours: float) -> str:
    """Return the verdict on a number above 1, of which the direction counts too."""
    return of_comparisons((ours > 1) + (abs(ours / paper - 1) <= NEAR), 2)


def _single(paper: float, ours: float) -> str:
    return of_comparisons(abs(ours / paper - 1) <= NEAR, 1)


def _memory(begins: str, shows: str) -> Entry:
    (row,) = (
        r for r in committed(PART, "reproduction") if r["source"] == "§4, §5" and str(r["what"]).startswith(begins)
    )
    why = f": {row['why']}" if row["why"] else ""
    return Entry(
        begins,
        shows,
        f"{row['ours']:.2f} [{row['paper']:g}]{why} ({link(PART, 'reproduction')})",
        of_comparisons(row["verdict"] == "agrees", 1),
    )


def _length_ratios() -> dict[str, tuple[float, float]]:
    """Return PrefillOnly's maximum input length over chunked prefill's by GPU, ours and the paper's."""
    table = committed(PART, "table2")
    found = {}
    for gpu in table.values("gpu"):
        own, chunked = (table.where(gpu=gpu, system=s).rows[0] for s in ("prefillonly", "chunked"))
        found[gpu] = (own["ours"] / chunked["ours"], own["paper"] / chunked["paper"])
    return found


def _five_times() -> Entry:
    found = _length_ratios()
    told = listed(f"{ours:.1f} [{paper:.1f}] on {gpu}" for gpu, (ours, paper) in found.items())
    most = max(ours for ours, _ in found.values())
    return Entry(
        "up to 5 times the maximum input length",
        "of chunked prefill",
        f"{told} ({link(PART, 'table2')})",
        _single(max(paper for _, paper in found.values()), most),
    )


def _eight_point_seven() -> Entry:
    found = _length_ratios()
    printed = max(paper for _, paper in found.values())
    return Entry(
        "more than 8.7 times chunked prefill's length",
        "§7.2",
        f"no pair of the paper's own Table 2 has it: at most {printed:.1f}; ours at most "
        f"{max(ours for ours, _ in found.values()):.1f} ({link(PART, 'table2')})",
        NOT,
    )


def _below_two() -> Entry:
    table = committed(PART, "table2")
    ours = [
        table.where(gpu=g, system="chunked").rows[0]["ours"] / table.where(gpu=g, system="paged").rows[0]["ours"]
        for g in table.values("gpu")
    ]
    below = sum(ratio < 2 for ratio in ours)
    return Entry(
        "chunked prefill takes less than twice the length",
        "of whole prompts",
        f"{times(min(ours), max(ours))} times on {len(ours)} GPUs ({link(PART, 'table2')})",
        of_comparisons(below, len(ours)),
    )


def _decoding() -> Entry:
    (row,) = committed(PART, "claims").where(source="text").rows
    return Entry(
        "decoding costs",
        "Llama-3.1-8B on an H100: 256 output tokens make requests of 2,048 tokens 1.5 times as slow as one",
        f"{row['ours']:.2f} times the time for 500 requests there at once, on the cost model of that GPU and vLLM's "
        f"defaults; the paper does not say how many it ran ({link(PART, 'claims')})",
        _size(row["paper"], row["ours"]),
    )


def _proxy() -> Entry:
    short, long = committed(PART, "claims").where(source="§6.3").rows
    return Entry(
        "§6.3, uncached tokens as a proxy",
        "Pearson's r of 0.987 with the measured time, Qwen-32B on an A100",
        f"{long['ours']:.3f} up to the paper's longest input there, {short['ours']:.3f} up to 20,000 tokens, on a cost "
        f"model of that GPU; nothing was measured on one ({link(PART, 'claims')})",
        _single(long["paper"], long["ours"]),
    )


def _low_load() -> Entry:
    rows = committed(PART, "low-load")
    told, seen = [], []
    for metric in rows.values("metric"):
        own = rows.where(metric=metric).rows
        lower = [r["qps"] for r in own if r["hi"] is not None and r["hi"] < 0]
        seen.append(bool(lower) and min(r["qps"] for r in own) in lower)
        told.append(f"{metric} at {len(lower)} of {len(own)} rates" + (f", up to {max(lower):g}/s" if lower else ""))
    return Entry(
        "at low QPS tensor parallelism is faster",
        "post recommendation on H100 with NVLink, up to about 10 requests/s",
        f"lower by paired intervals: {listed(told)} ({link(PART, 'low-load')})",
        of_comparisons(sum(seen), len(seen)),
    )


def _no_batching() -> Entry:
    variants = committed(PART, "variants").where(workload=POST)
    told, more = [], 0
    for setup in variants.values("setup"):
        own = {r["variant"]: r for r in variants.where(setup=setup)}
        one = own["PrefillOnly, its store as long as the longest prompt"]
        several = own["PrefillOnly's cost and FCFS, several prompts per step"]
        told.append(f"{several['throughput']:.1f} against {one['throughput']:.1f} on {setup}")
        more += several["lo"] > one["hi"]
    return Entry(
        "§6.1, no batching",
        "one request per step: computing is the bottleneck, so that batching would only raise the mean latency",
        f"requests/s with everything there at once and several prompts in a step, against one: {listed(told)}; more, "
        f"by intervals that do not meet, on {more} of {len(told)}. A likely reason is that short rests after a cached "
        f"profile share the reading of the weights ({link(PART, 'variants')}, {page_link(PAGE, PAGE)})",
        of_comparisons(len(told) - more, len(told)),
    )


def _throttling() -> Entry:
    paired = committed("prefillonly-more", "left-out-orderings-paired")
    told = []
    for mode, name in (("users", NAMES[POST]), ("requests", "shuffled"), ("spread", "over time")):
        (row,) = paired.where(arrivals=mode, multiple=1, ordering="calibrated, λ=500", metric="hit_rate").rows
        told.append((name, row))
    seen = [bool(row["significant"]) and row["difference"] > 0 for _, row in told]
    texts = listed(
        f"{name} {row['difference']:+.2f} ({row['lo']:.2f} to {row['hi']:.2f})"
        if row["lo"] is not None
        else f"{name} {row['difference']:+.2f}"
        for name, row in told
    )
    return Entry(
        "calibration keeps the prefix cache from throttling",
        "§6, §7.2; not separated from the rest of the engine",
        f"one engine, calibrated SRJF less FCFS at x, share of tokens found in the cache: {texts} "
        f"({link('prefillonly-more', 'left-out-orderings-paired')})",
        of_comparisons(sum(seen), len(seen)),
    )
