# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Write your own policy
#
# An idea, twenty lines, a certificate, and the question whether it is any good. The idea: SLOWeave needs a cost model
# to find its chunk. Why not simply take fewer tokens the more requests decode?

# %%
from typing import Annotated

import numpy as np
from annotated_types import Ge

from costmodels import LinearCost, load_cost_model
from experiments.plotting import new_figure
from policies import BatchView, Chunking, Grant, Ordering, RequestView, parse_policy, register
from policies.checks import check_policy
from policies.units import MS
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.stats import paired
from traces.synthetic import generate

# %% [markdown]
# ## A part of a policy
#
# A class with a name, a source, and parameters that have a type and a default. A chunking answers `grant`: how many
# prefill tokens this step takes. It sees what is in the view and nothing else; all of it a real engine knows too.


# %%
@register
class Shrinking(Chunking):
    """A chunk that shrinks with every request that decodes."""

    name = "shrinking"
    source = "notebooks/my_policy.py"

    most: Annotated[int, Ge(1)] = 2048
    """Prefill tokens of a step without decodes."""

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self.most // batch.n_decode)


print(parse_policy("fcfs+shrinking:most=1024").label)

# %% [markdown]
# ## Is it one?
#
# `check_policy` shows it many views and says what no engine could carry out. (For a file of your own, `prefillsim
# policies check FILE.py` does that and a short simulation.)

# %%
problems = check_policy(Shrinking)
print(problems[0].partition("; it was given")[0])
assert problems

# %% [markdown]
# Nobody need be decoding, and with enough decodes the quotient is no token at all. The second draft takes a few
# tokens off for each decode, and leaves at least one. Registering the class again replaces it.


# %%
@register
class Shrinking(Chunking):
    """A chunk that shrinks by a few tokens with every request that decodes."""

    name = "shrinking"
    source = "notebooks/my_policy.py"

    most: Annotated[int, Ge(1)] = 2048
    """Prefill tokens of a step without decodes."""
    slope: Annotated[int, Ge(0)] = 8
    """Tokens fewer for each request that decodes."""

    def grant(self, batch: BatchView) -> Grant:
        return Grant(max(1, self.most - self.slope * batch.n_decode))


assert not check_policy(Shrinking)

# %% [markdown]
# An ordering answers `key`: an integer that does not depend on the clock, the least goes first. The check knows one
# that reads it when it sees it:

# %%
import time


@register
class Impatient(Ordering):
    """Whoever has waited longest by this machine's clock."""

    name = "impatient"
    source = "notebooks/my_policy.py"

    def key(self, request: RequestView) -> int:
        return request.arrival_ns - time.time_ns()


print(check_policy(Impatient)[0].partition("; ")[0])
assert check_policy(Impatient)

# %% [markdown]
# ## Is it any good?
#
# Five seeds, the same requests for every policy, so that differences are taken in pairs. The paper's cost model says
# (25 − 1.65) / 0.006 = 3891 tokens without decodes and 55 / 6 = 9.2 fewer for each: with 3890 and 10 no step is late.

# %%
goals = Objectives.parse("ttft:1000,tpot_p99:25")
paper = load_cost_model("sloweave-paper")


def goodput(policy: str, cost: LinearCost) -> list[float]:
    """Return the goodput of five seeds, in requests per second."""
    found = []
    for seed in range(5):
        run = simulate(generate("mixed", seed, 500), parse_policy(policy), cost, objectives=goals)
        found.append(summarise(run.requests, run.steps, goals)["goodput"])
    return found


tuned = "fcfs+shrinking:most=3890,slope=10"
policies = ("fcfs+fixed:chunk=512", "fcfs+shrinking", tuned, "sloweave")
on_paper = {policy: goodput(policy, paper) for policy in policies}
for policy, values in on_paper.items():
    difference = paired(values, on_paper["sloweave"]).difference
    print(
        f"{policy:35} {np.mean(values):5.1f} requests/s, less SLOWeave's {difference.mean:+5.1f} "
        f"[{difference.lo:+.1f}, {difference.hi:+.1f}]"
    )

# %% [markdown]
# ## Where the idea ends
#
# On a machine whose prefill takes half as long again, the numbers are wrong and every full step is late. SLOWeave
# asks the cost model and finds other chunks.

# %%
slower = LinearCost("slower", paper.step, paper.decode, paper.per_decode, paper.prefill, paper.per_token * 3 // 2)
on_slower = {policy: goodput(policy, slower) for policy in policies}

with new_figure(7, 2.6) as figure:
    axis = figure.subplots()
    at = np.arange(len(policies))
    for k, (label, found) in enumerate((("the paper's cost model", on_paper), ("a slower prefill", on_slower))):
        axis.barh(at + 0.4 * k, [np.mean(found[policy]) for policy in policies], 0.38, label=label)
    axis.set_yticks(at + 0.2, policies)
    axis.invert_yaxis()
    axis.set_xlabel("goodput (requests/s)")
    axis.legend()
figure

# %% [markdown]
# Check it: a chunk that shrinks is as good as SLOWeave where somebody has done the arithmetic, and only there.

# %%
gap = np.mean(on_paper["sloweave"]) - np.mean(on_paper[tuned])
print(f"SLOWeave is ahead by {gap:.2f} requests/s where the numbers fit,")
assert abs(gap) < 0.02 * np.mean(on_paper["sloweave"])
lost = paired(on_slower["sloweave"], on_slower[tuned]).difference
print(f"and by {lost.mean:.1f} [{lost.lo:.1f}, {lost.hi:.1f}] where they do not.")
assert lost.lo > 0

run = simulate(generate("mixed", 0, 500), parse_policy(tuned), paper, objectives=goals)
assert run.steps["duration_ns"][run.steps["n_decode"] > 0].max() <= 25 * MS
