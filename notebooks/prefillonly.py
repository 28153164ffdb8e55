# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # PrefillOnly step by step
#
# Requests that want one output token are all prefill: how long one takes is known before it runs, but for what the
# prefix cache holds by then. PrefillOnly asks the cache anew at every choice. Four requests show why that matters.

# %%
import numpy as np

from costmodels import load_cost_model
from experiments.plotting import GREEN, SKY, new_figure
from experiments.prefillonly.toy import toy_trace
from policies import parse_policy
from policies.units import NS
from sim.engine import simulate
from sim.memory import Memory
from sim.metrics import summarise
from sim.objectives import Objectives
from traces.synthetic import generate

# %% [markdown]
# ## Four requests, and a cache that holds one
#
# A and D begin with the same 800 blocks, B and C with the same other 800. All are there at the start, and the cache
# holds one finished prompt.

# %%
trace = toy_trace()
names = trace.id.tolist()
for i, name in enumerate(names):
    shared, own = trace.segments.of(i)
    print(f"{name}: {trace.prompt_tokens[i]:,} tokens, the first {shared[1]:,} of them content {shared[0]}")

longest = int(trace.prompt_tokens.max())
memory = Memory(blocks=longest // 16, block_size=16, regime="store", max_input=longest)
cost = load_cost_model("prefill:llm=llama-3.1-8b,gpu=l4")

# %% [markdown]
# First come, first served throws each prefix away just before it is wanted. Shortest first, by length at arrival,
# does the same. By length *as it is now*, D is the shortest once A has run: its prefix is in the cache.

# %%
served = {}
for policy in ("fcfs+full", "srjf-static+full", "prefillonly"):
    run = simulate(trace, parse_policy(policy), cost, cache=memory.build(trace))
    requests = run.requests
    order = np.argsort(requests["first_scheduled_ns"], kind="stable").tolist()
    served[policy] = [names[i] for i in order], requests
    hits = int((requests["cached_tokens"] > 0).sum())
    print(f"{policy:17} {' '.join(names[i] for i in order)}   {hits} hit{'s' * (hits != 1)}")

with new_figure(7, 2.2) as figure:
    axis = figure.subplots()
    for row, (_, requests) in enumerate(served.values()):
        for i, name in enumerate(names):
            start, end = requests["first_scheduled_ns"][i] / NS, requests["finished_ns"][i] / NS
            colour = GREEN if requests["cached_tokens"][i] else SKY
            axis.barh(row, end - start, left=start, color=colour, edgecolor="white")
            axis.text((start + end) / 2, row, name, ha="center", va="center")
    axis.set_yticks(range(len(served)), served)
    axis.invert_yaxis()
    axis.set_xlabel("time (s); green: the prefix was found in the cache")
figure

# %% [markdown]
# ## The same by hand
#
# The work of a request is its uncached tokens: all of them, less the 12,800 of its prefix if the request before it
# has left them. Each choice takes the least. Nobody has waited longer than anybody else, so λ plays no part yet.

# %%
tokens = dict(zip(names, trace.prompt_tokens.tolist(), strict=True))
shares = {"A": "D", "D": "A", "B": "C", "C": "B"}
waiting, last, by_hand = list(names), None, []
while waiting:
    work = {name: tokens[name] - (12_800 if shares[name] == last else 0) for name in waiting}
    last = min(waiting, key=work.get)
    print(", ".join(f"{name} {work[name]:,}" for name in waiting), "→", last)
    waiting.remove(last)
    by_hand.append(last)

assert by_hand == served["prefillonly"][0] == ["A", "D", "C", "B"]

# %% [markdown]
# ## λ: waiting counts, but not too much
#
# Shortest first lets long requests starve, so a request's score is its work − λ × the time it has waited. All that
# wait age alike, so who is least does not change with time, only with the cache. λ = ∞ is first come, first served.
# Post recommendation has users with 50 posts each, here in random order and faster than the GPU can serve without
# hits.

# %%
posts = generate("post-recommendation:arrivals=requests", seed=0, n=400, rate=3.0)
longest = int(posts.prompt_tokens.max())
store = Memory(blocks=4000, block_size=16, regime="store", max_input=longest)
lams = ("0", "200", "500", "2000", "10000", "inf")
found = {}
for lam in lams:
    run = simulate(posts, parse_policy(f"prefillonly:lam={lam}"), cost, cache=store.build(posts))
    found[lam] = summarise(run.requests, run.steps, Objectives())
    mean, p99 = (found[lam][metric] / 1e3 for metric in ("jct_mean_ms", "jct_p99_ms"))
    hits = found[lam]["hit_rate"]
    print(f"λ = {lam:>5}: mean latency {mean:6.1f} s, P99 {p99:6.1f} s, {hits:.0%} of the prompt tokens from the cache")

with new_figure(7, 2.6) as figure:
    axis = figure.subplots()
    for metric, label in (("jct_mean_ms", "mean"), ("jct_p99_ms", "P99")):
        axis.plot(range(len(lams)), [found[lam][metric] / 1e3 for lam in lams], marker="o", label=label)
    axis.set_xticks(range(len(lams)), ["∞" if lam == "inf" else lam for lam in lams])
    axis.set_xlabel("λ (tokens per second of waiting)")
    axis.set_ylabel("latency (s)")
    axis.set_ylim(0)
    axis.legend()
figure

# %% [markdown]
# Check it: a little λ costs no hits and makes even the slowest requests faster; more of it serves users in turns,
# each of whom evicts the others' profiles.

# %%
hit_rates = [found[lam]["hit_rate"] for lam in lams[1:]]
assert hit_rates == sorted(hit_rates, reverse=True)
for metric in ("jct_mean_ms", "jct_p99_ms"):
    assert min(lams, key=lambda lam: found[lam][metric]) == "200"
