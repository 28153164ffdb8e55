# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # A short tour
#
# One trace, two policies, and what the tables of a run say. Open it with jupytext, or run it with Python.

# %%
import numpy as np

from costmodels import load_cost_model
from policies import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from traces.synthetic import generate

trace = generate("mixed", seed=0)
cost = load_cost_model("sloweave-paper")
goals = Objectives.parse("ttft:1000,tpot_p99:25")

# %% [markdown]
# A policy is an ordering and a chunking. Both policies here serve the oldest prefill first; they differ in how many of
# its tokens a step takes.

# %%
runs = {
    name: simulate(trace, parse_policy(name), cost, objectives=goals) for name in ("fcfs+fixed:chunk=1024", "sloweave")
}
summaries = {name: summarise(run.requests, run.steps, goals) for name, run in runs.items()}
for name, summary in summaries.items():
    print(
        f"{name}: {summary['goodput']:.1f} requests/s within both objectives, P99 TPOT {summary['tpot_p99_ms']:.1f} ms"
    )

# %% [markdown]
# The steps table has a row per step. SLOWeave's chunk is what the decode batch leaves of the deadline: where more
# requests decode, the largest chunk is smaller.

# %%
steps = runs["sloweave"].steps
for low, high in ((1, 40), (40, 80), (80, 120), (120, 160)):
    inside = (steps["n_decode"] >= low) & (steps["n_decode"] < high)
    if inside.any():
        print(f"{low:>3} to {high - 1:>3} decodes: largest chunk {steps['prefill_tokens'][inside].max():,} tokens")

# %% [markdown]
# No step with decodes lasts longer than the objective, because the policy believes the very cost model that the engine
# charges. Give `simulate` another `predictor`, and see what a prediction that is 5 % too low costs.

# %%
decoding = steps["n_decode"] > 0
print("longest step with decodes:", steps["duration_ns"][decoding].max() / 1e6, "ms")

hopeful = type(cost)(
    name="5 % too low", step=332_500, decode=855_000, per_decode=52_250, prefill=380_000, per_token=5_700
)
late = simulate(trace, parse_policy("sloweave"), cost, predictor=hopeful, objectives=goals)
print("goodput:", round(summarise(late.requests, late.steps, goals)["goodput"], 1), "requests/s")
careful = simulate(trace, parse_policy("sloweave:margin=6%"), cost, predictor=hopeful, objectives=goals)
print("with a margin of 6 %:", round(summarise(careful.requests, careful.steps, goals)["goodput"], 1), "requests/s")

# %% [markdown]
# The requests table has a row per request, and plain NumPy arrays for columns.

# %%
requests = runs["sloweave"].requests
print("mean chunks per request:", requests["chunks"].mean())
print("P99 TTFT:", np.percentile(requests["ttft_ns"], 99) / 1e6, "ms")
