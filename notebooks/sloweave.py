# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # SLOWeave step by step
#
# While requests decode, each step must end in time for their next tokens. SLOWeave takes, in every step, as many
# prefill tokens as fit into what is left of that time. Here is where the chunk comes from, what it does in a run, and
# what it buys.

# %%
import numpy as np

from costmodels import load_cost_model
from experiments.plotting import new_figure
from experiments.step_picture import draw_steps
from policies import BatchView, Candidate, RequestView, parse_policy
from policies.units import MS
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from traces.synthetic import generate

cost = load_cost_model("sloweave-paper")

# %% [markdown]
# ## One decision
#
# The cost model of the paper: a step with n decodes and c prefill tokens takes 0.35 + [n > 0](0.9 + 0.055 n) + [c >
# 0](0.4 + 0.006 c) ms. So with 4 decodes and 10 ms to the deadline, c is at most (10 − 0.35 − 0.9 − 0.22 − 0.4) /
# 0.006 = 1355 tokens, exactly. In floating point that step takes 10.000000000000002 ms and would be late, which is
# why the clock here counts whole nanoseconds.

# %%
print("as floating point:", 0.35 + (0.9 + 0.055 * 4) + (0.4 + 0.006 * 1355), "ms")
print("here:", cost.step_ns(4, 0, 0, 1, 1355, 0), "ns")

policy = parse_policy("sloweave:tpot=10")
policy.reset(cost)
oldest = RequestView(number=0, arrival_ns=0, prompt_tokens=2000)
batch = BatchView(
    now_ns=0,
    n_decode=4,
    decode_context=4000,
    decode_context_max=1000,
    earliest_deadline_ns=10 * MS,
    candidates=(Candidate(oldest, context=0, remaining=2000),),
    n_waiting=1,
)
chunk = policy.chunking.grant(batch).tokens
print("SLOWeave takes", chunk, "of the 2000 tokens")
assert chunk == 1355
assert cost.step_ns(4, 0, 0, 1, chunk, 0) <= 10 * MS < cost.step_ns(4, 0, 0, 1, chunk + 1, 0)

# %% [markdown]
# More decodes leave less time, and a looser objective leaves more:

# %%
print("decodes " + "".join(f"{f'D = {d} ms':>13}" for d in (10, 25, 50)))
for n in (1, 40, 80, 120, 160):
    print(f"{n:7} " + "".join(f"{cost.max_chunk(n, 0, 0, 0, 8192, d * MS):>13,}" for d in (10, 25, 50)))

# %% [markdown]
# ## A run
#
# A thousand long prompts. Full prefill holds every decode up; a fixed chunk is either too long for many decodes or
# too short for few; SLOWeave's bars are as high as the curve of decodes lets them be.

# %%
D = 25
goals = Objectives.parse(f"ttft:5000,tpot_p99:{D}")
trace = generate("long", seed=0)
shown = ("fcfs+full", "fcfs+fixed:chunk=1024", "sloweave")
runs = {name: simulate(trace, parse_policy(name), cost, objectives=goals) for name in shown}

window = (5000.0, 5400.0)
panels = []
for name, run in runs.items():
    steps = run.steps
    late = (steps["duration_ns"] > D * MS) & (steps["n_decode"] > 0)
    inside = (steps["start_ns"] >= window[0] * MS) & (steps["start_ns"] < window[1] * MS)
    rows = [
        {
            "start_ms": steps["start_ns"][k] / MS,
            "duration_ms": steps["duration_ns"][k] / MS,
            "prefill_tokens": int(steps["prefill_tokens"][k]),
            "n_decode": int(steps["n_decode"][k]),
            "late": bool(late[k]),
        }
        for k in np.flatnonzero(inside).tolist()
    ]
    panels.append((f"{name}: {late[inside].sum()} of {inside.sum()} steps longer than {D} ms", rows))

with new_figure(7, 4.2) as figure:
    draw_steps(figure, panels, window)
figure

# %% [markdown]
# ## What it buys
#
# Goodput counts requests that meet both objectives. A fixed chunk has to be tuned to the objective; SLOWeave has
# nothing to tune. The last line is a budget that *several* prefills share, which the paper does not compare: it has
# nothing left at 10 ms, and at 50 ms almost twice the goodput of one prefill per step.

# %%
mixed = generate("mixed", seed=0)
chunks = (256, 512, 1024, 2048, 3072)
candidates = [*(f"fcfs+fixed:chunk={c}" for c in chunks), "sloweave", "vllm-default"]
print("goodput, requests/s" + "".join(f"{f'D = {d} ms':>12}" for d in (10, 25, 50)))
goodput = {}
for name in candidates:
    for d in (10, 25, 50):
        goals = Objectives.parse(f"ttft:1000,tpot_p99:{d}")
        run = simulate(mixed, parse_policy(name), cost, objectives=goals)
        goodput[name, d] = summarise(run.requests, run.steps, goals)["goodput"]
    print(f"{name:19}" + "".join(f"{goodput[name, d]:>12.1f}" for d in (10, 25, 50)))

# %% [markdown]
# Check it: no token of a SLOWeave run is late, and none of these fixed chunks is better than SLOWeave for any of the
# objectives.

# %%
steps = runs["sloweave"].steps
assert steps["duration_ns"][steps["n_decode"] > 0].max() <= D * MS
for d in (10, 25, 50):
    best = max(goodput[f"fcfs+fixed:chunk={c}", d] for c in chunks)
    print(f"D = {d} ms: SLOWeave {goodput['sloweave', d]:.1f}, best fixed chunk {best:.1f} requests/s")
    assert goodput["sloweave", d] >= best
assert goodput["vllm-default", 10] < 1
assert goodput["vllm-default", 50] > 1.8 * goodput["sloweave", 50]
