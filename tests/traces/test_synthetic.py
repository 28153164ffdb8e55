"""SLOWeave's and PrefillOnly's workloads: medians, totals, and streams that do not touch each other."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from traces.schema import IntArray, TraceError
from traces.synthetic import PREFILLONLY, SLOWEAVE, WORKLOADS, Streams, find_workload, generate

N = 20_000


def assert_share(flags: np.ndarray, probability: float) -> None:
    """The share of true flags is what chance makes of ``probability``; off by 3 % of it, it would not be."""
    assert 4 * np.sqrt(probability * (1 - probability) / len(flags)) < 0.03 * max(probability, 1 - probability)
    assert stats.binomtest(int(flags.sum()), len(flags), probability).pvalue > 1e-4


def assert_median(tokens: IntArray, median: float) -> None:
    """The paper's median lies between the order statistics that bracket it with 99.99 % confidence."""
    low, high = stats.binom.interval(0.9999, len(tokens), 0.5)
    ordered = np.sort(tokens)
    assert ordered[int(low)] <= median <= ordered[int(high)]
    assert ordered[int(high)] - ordered[int(low)] <= 0.05 * median


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("chat", 256, 96), ("mixed", None, 100), ("long", 1800, 180), ("bursty", None, 100)]
)
def test_medians_are_the_papers(name: str, prompt: float | None, output: float) -> None:
    trace = generate(name, 0, N)
    assert_median(trace.output_tokens, output)
    if prompt is not None:
        assert_median(trace.prompt_tokens, prompt)


@pytest.mark.parametrize("name", ["mixed", "bursty"])
def test_mixed_prompts_are_70_percent_short(name: str) -> None:
    prompts = generate(name, 1, N).prompt_tokens
    short, long = (stats.lognorm(0.55, scale=m) for m in (256, 1800))
    for tokens in (256, 400, 800, 1800, 3000):
        assert_share(prompts <= tokens, 0.7 * short.cdf(tokens + 0.5) + 0.3 * long.cdf(tokens + 0.5))


@pytest.mark.parametrize(("name", "median", "sigma"), [("chat", 96, 0.30), ("long", 180, 0.40)])
def test_spreads_are_the_documented_ones(name: str, median: float, sigma: float) -> None:
    trace = generate(name, 2, N)
    for z in (-1, 1):
        tokens = round(median * np.exp(sigma * z))
        assert_share(trace.output_tokens <= tokens, stats.lognorm(sigma, scale=median).cdf(tokens + 0.5))
    prompt = SLOWEAVE[name].prompt_median
    tokens = round(prompt * np.exp(0.55))
    assert_share(trace.prompt_tokens <= tokens, stats.lognorm(0.55, scale=prompt).cdf(tokens + 0.5))


@pytest.mark.parametrize("name", SLOWEAVE)
def test_lengths_are_clipped_and_rates_are_offered(name: str) -> None:
    # Bursts make the rate of a short trace uncertain.
    n = 10 * N if name == "bursty" else N
    traces = [generate(name, seed, n) for seed in range(20)]
    for trace in traces:
        assert 16 <= trace.prompt_tokens.min() <= trace.prompt_tokens.max() <= 8192
        assert 4 <= trace.output_tokens.min() <= trace.output_tokens.max() <= 1024
        assert trace.segments is None
    rates = [n / (t.arrival_ns[-1] / 1e9) for t in traces]
    half = stats.t.ppf(0.9995, 19) * stats.sem(rates)
    assert half < 0.02 * SLOWEAVE[name].rate
    assert abs(np.mean(rates) - SLOWEAVE[name].rate) <= half


def test_there_are_1000_requests_unless_said_otherwise() -> None:
    assert len(generate("chat", 0)) == 1000
    assert len(generate("chat", 0, 17)) == 17


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_is_a_trace(name: str) -> None:
    assert generate(name, 5) == generate(name, 5)
    assert generate(name, 5).digest() != generate(name, 6).digest()


@pytest.mark.parametrize("name", WORKLOADS)
def test_changing_the_rate_leaves_lengths_and_content_alone(name: str) -> None:
    plain = generate(name, 3)
    fast = generate(name, 3, rate=4 * WORKLOADS[name].rate)
    assert replace(fast, arrival_ns=plain.arrival_ns) == plain
    # The same draws, four times as dense; the states of bursty last as long as before.
    assert name == "bursty" or np.all(np.abs(fast.arrival_ns - plain.arrival_ns / 4) <= 1)


def test_changing_the_lengths_leaves_arrivals_alone() -> None:
    plain = SLOWEAVE["mixed"].generate(500, 3, None, "mixed")
    longer = replace(SLOWEAVE["mixed"], prompt_sigma=1.0, long_share=0.9).generate(500, 3, None, "mixed")
    assert longer.arrival_ns.tolist() == plain.arrival_ns.tolist()
    assert longer.prompt_tokens.tolist() != plain.prompt_tokens.tolist()


def test_streams_are_independent() -> None:
    streams = Streams.of(0)
    draws = [s.standard_normal(N) for s in (streams.arrivals, streams.lengths, streams.content)]
    for a in range(3):
        for b in range(a):
            assert abs(np.corrcoef(draws[a], draws[b])[0, 1]) < 4 / np.sqrt(N)


def test_post_recommendation_is_the_papers() -> None:
    trace = generate("post-recommendation", 0)
    assert len(trace) == 20 * 50
    assert trace.session is not None
    assert trace.segments is not None
    assert set(trace.output_tokens.tolist()) == {1}
    posts = set()
    for user in range(20):
        rows = np.flatnonzero(trace.session == f"user-{user}").tolist()
        assert len(rows) == 50
        contents = [trace.segments.of(r) for r in rows]
        assert len({c[0] for c in contents}) == 1
        assert 11_000 <= contents[0][0][1] <= 17_000
        assert {c[1][1] for c in contents} == {150}
        posts |= {c[1][0] for c in contents}
    assert len(posts) == 1_000
    profiles = {trace.segments.of(r)[0][0] for r in range(1_000)}
    assert len(profiles) == 20
    assert not profiles & posts


def totals(name: str) -> list[int]:
    return [int(generate(name, seed).prompt_tokens.sum()) for seed in range(40)]


@pytest.mark.parametrize(
    ("name", "tokens", "narrow"),
    [("post-recommendation", 14_150_000, 0.025), ("credit-verification", 3_000_000, 0.015)],
)
def test_total_tokens_are_the_papers(name: str, tokens: int, narrow: float) -> None:
    values = totals(name)
    half = stats.t.ppf(0.9995, len(values) - 1) * stats.sem(values)
    assert half < narrow * tokens
    assert abs(np.mean(values) - tokens) <= half


def test_credit_verification_has_one_long_prompt_per_user() -> None:
    trace = generate("credit-verification", 0)
    assert len(trace) == 60
    assert trace.session is not None
    assert len(set(trace.session.tolist())) == 60
    assert 40_000 <= trace.prompt_tokens.min() <= trace.prompt_tokens.max() <= 60_000
    assert trace.segments is not None
    assert len(set(trace.segments.ids.tolist())) == 60


def test_users_may_arrive_with_all_their_requests_or_request_by_request() -> None:
    users = PREFILLONLY["post-recommendation"]
    together = users.generate(None, 1, None, "w")
    assert together.session is not None
    assert len(set(together.arrival_ns.tolist())) == 20
    assert len(set(zip(together.arrival_ns.tolist(), together.session.tolist(), strict=True))) == 20
    apart = replace(users, arrivals="requests").generate(None, 1, None, "w")
    assert apart.session is not None
    assert len(set(apart.arrival_ns.tolist())) == 1_000
    assert sorted(apart.session.tolist()) == sorted(together.session.tolist())
    assert len(set(apart.session[:50].tolist())) > 5


def test_a_users_requests_may_be_spread_over_time() -> None:
    users = replace(PREFILLONLY["post-recommendation"], users=400)
    together = users.generate(None, 1, 20.0, "w")
    spread = replace(users, arrivals="spread", active=4.0).generate(None, 1, 20.0, "w")
    assert spread.session is not None
    assert together.session is not None
    times = {u: spread.arrival_ns[spread.session == u] for u in dict.fromkeys(together.session.tolist())}
    # The first request comes when all would; the others follow at exponential gaps.
    starts = together.arrival_ns[::50]
    assert np.all(np.abs(np.array([t[0] for t in times.values()]) - starts) <= 1)
    gaps = np.concatenate([np.diff(t) for t in times.values()]) / 1e9
    assert len(gaps) == 49 * 400
    assert stats.kstest(gaps, stats.expon(scale=4.0 / 20.0).cdf).pvalue > 1e-4
    # By Little's law, users that are sending: arrivals of users per second times how long each sends.
    sending = sum(t[-1] - t[0] for t in times.values()) / starts[-1]
    assert sending == pytest.approx(4.0 * 49 / 50, rel=0.15)


def test_spread_is_the_same_at_every_rate_but_for_the_clock() -> None:
    slow = generate("post-recommendation:arrivals=spread,active=3", 2, rate=5.0)
    fast = generate("post-recommendation:arrivals=spread,active=3", 2, rate=50.0)
    assert replace(fast, arrival_ns=slow.arrival_ns) == slow
    assert np.all(np.abs(slow.arrival_ns - 10 * fast.arrival_ns) <= 20)


def test_arrivals_of_users_and_of_requests_may_be_bursty() -> None:
    users = replace(PREFILLONLY["post-recommendation"], users=20_000, requests_per_user=1, burstiness=0.25)
    for arrivals in ("users", "requests"):
        trace = replace(users, arrivals=arrivals).generate(None, 0, 10.0, "w")
        gaps = np.diff(trace.arrival_ns)
        assert gaps.mean() == pytest.approx(1e8, rel=0.05)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(4, rel=0.2)


def test_everybodys_requests_may_arrive_at_once() -> None:
    trace = generate("post-recommendation:arrivals=all-at-once", 3)
    assert not trace.arrival_ns.any()
    users = generate("post-recommendation", 3)
    assert replace(trace, arrival_ns=users.arrival_ns, name=users.name) == users


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_profiles_may_be_log_normal_around_the_same_mean(sigma: float) -> None:
    profiles = replace(
        PREFILLONLY["post-recommendation"],
        users=20_000,
        requests_per_user=1,
        post_tokens=0,
        clip=None,
        profile_sigma=sigma,
    )
    tokens = profiles.generate(None, 0, None, "w").prompt_tokens
    law = stats.lognorm(sigma, scale=14_000 * np.exp(-sigma * sigma / 2))
    assert law.mean() == pytest.approx(14_000)
    for z in (-1.0, 0.0, 1.5):
        at = law.median() * np.exp(sigma * z)
        assert_share(tokens <= at, law.cdf(np.floor(at) + 0.5))


def test_profiles_need_not_be_clipped() -> None:
    profiles = replace(PREFILLONLY["post-recommendation"], users=20_000, requests_per_user=1, post_tokens=0, clip=None)
    tokens = profiles.generate(None, 0, None, "w").prompt_tokens
    for z in (-1.0, 0.0, 1.0):
        assert_share(tokens <= 14_000 + 3_000 * z, stats.norm.cdf(z + 0.5 / 3_000))


def test_more_requests_than_users_make_more_users() -> None:
    trace = generate("post-recommendation", 0, 1_201)
    assert len(trace) == 1_201
    assert trace.session is not None
    assert len(set(trace.session.tolist())) == 25


def test_what_cannot_be_generated() -> None:
    with pytest.raises(TraceError, match=r"^unknown workload mixd; did you mean mixed\? \(workloads: chat, mixed, "):
        generate("mixd", 0)
    with pytest.raises(TraceError, match="a workload has at least 1 request, not 0"):
        generate("chat", 0, 0)
    for name in WORKLOADS:
        with pytest.raises(TraceError, match=r"^rate must be a positive number of requests per second, not -5$"):
            generate(name, 0, rate=-5)


def test_a_workload_without_parameters_is_itself() -> None:
    for name, workload in WORKLOADS.items():
        assert find_workload(name) == workload
        text = f"{name}:rate={workload.rate}"
        assert find_workload(text) == workload
        assert replace(generate(text, 4, 20), name=name) == generate(name, 4, 20)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("mixed:prompt_sigma=0,long_share=1", {"prompt_sigma": 0.0, "long_share": 1.0}),
        ("chat:arrivals=gamma,burstiness=0.5", {"arrivals": "gamma", "burstiness": 0.5}),
        ("bursty:dwell=10", {"dwell": 10.0}),
        ("bursty:arrivals=poisson", {"arrivals": "poisson", "high": None, "low": None, "dwell": None}),
        ("post-recommendation:arrivals=requests,clip=none", {"arrivals": "requests", "clip": None}),
        ("post-recommendation:clip=100-200", {"clip": (100, 200)}),
        ("post-recommendation:arrivals=spread,active=5", {"arrivals": "spread", "active": 5.0}),
    ],
)
def test_parameters_change_what_they_name(text: str, changed: dict[str, object]) -> None:
    assert find_workload(text) == replace(WORKLOADS[text.partition(":")[0]], **changed)


def test_parameters_reach_the_requests() -> None:
    assert set(generate("mixed:prompt_sigma=0,long_share=1", 0, 50).prompt_tokens.tolist()) == {1800}
    assert not generate("chat:arrivals=all-at-once", 0, 50).arrival_ns.any()
    assert generate("post-recommendation:clip=100-200", 0).prompt_tokens.max() <= 350
    bursty = np.diff(generate("chat:arrivals=gamma,burstiness=0.2", 0, 20_000).arrival_ns)
    # The squared coefficient of variation of gamma gaps is 1 / shape.
    assert bursty.var() / bursty.mean() ** 2 == pytest.approx(5, rel=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixed:sigma=1", "unknown workload mixed parameter sigma; did you mean prompt_sigma?"),
        ("mixed:prompt_sigma", "workload mixed:prompt_sigma: 'prompt_sigma' should read name=value"),
        ("mixed:prompt_sigma=-1", "workload mixed:prompt_sigma=-1: prompt_sigma: input should be greater than"),
        ("mixed:prompt_sigma=nan", "workload mixed:prompt_sigma=nan: prompt_sigma: "),
        ("mixed:prompt_sigma=1,prompt_sigma=2", "prompt_sigma is given twice"),
        ("mixed:arrivals=poison", "workload mixed:arrivals=poison: arrivals: input should be 'poisson', 'gamma'"),
        ("mixed:burstiness=2", "burstiness goes with arrivals=gamma"),
        ("mixed:arrivals=gamma", "burstiness goes with arrivals=gamma, and arrivals=gamma needs it"),
        ("chat:high=3", "high goes with arrivals=two-state"),
        ("post-recommendation:arrivals=spread", "active goes with arrivals=spread, and arrivals=spread needs it"),
        ("post-recommendation:active=2", "active goes with arrivals=spread"),
        ("post-recommendation:arrivals=spread,active=0", "active: input should be greater than 0"),
        ("post-recommendation:arrivals=all-at-once,burstiness=2", "burstiness needs arrivals that do not come all at"),
        ("post-recommendation:arrivals=spread,active=1e300", "the rate is so low that arrivals come later"),
        ("post-recommendation:clip=x", "workload post-recommendation:clip=x: clip: "),
        ("post-recommendation:users=0", "users: input should be greater than or equal to 1"),
    ],
)
def test_parameters_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)):
        generate(text, 0)


def test_all_at_once_has_no_rate() -> None:
    for name in ("chat", "post-recommendation"):
        with pytest.raises(TraceError, match="all at once have no rate"):
            generate(f"{name}:arrivals=all-at-once", 0, rate=5.0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_limit_takes_the_first_requests(name: str) -> None:
    whole = generate(name, 6)
    for n in (1, 30, len(whole)):
        assert generate(name, 6, n) == whole.limit(n)
