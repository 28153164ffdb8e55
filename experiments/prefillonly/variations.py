"""Left out by the paper: one model on all GPUs, bursts, how much requests share, and heavy-tailed lengths."""

from __future__ import annotations

from experiments.prefillonly.bench import POST, Load, Point, at_once, saturation
from experiments.prefillonly.hitrates import SETUP, SYSTEM_NAMES
from experiments.prefillonly.panels import Panels
from experiments.prefillonly.study import Seeds, Study
from experiments.prefillonly.systems import WORKLOADS, Deployment, Setup, deploy, deployments

LLM = "llama-3.1-8b"

GPUS = {"l4": "pcie", "a100-40": "pcie", "h100-pcie": "pcie", "h100-nvlink": "nvlink", "h200": "nvlink"}
"""And the link between two of them."""

REQUESTS = 1000

SHUFFLED_AT_ONCE = 1e6
"""Requests per second at which none waits for another to arrive."""


def gpu_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """Llama-3.1-8B on two of every GPU, everything there at once, by users and shuffled."""
    loads = {"users": at_once(), "requests": Load(f"{POST}:arrivals=requests", SHUFFLED_AT_ONCE)}
    return [
        ({"arrivals": mode, "gpu": gpu, "system": name}, system, load)
        for mode, load in loads.items()
        for gpu, link in GPUS.items()
        for name, system in deployments(Setup(gpu, gpu, gpu, LLM, link), WORKLOADS[POST]).items()
    ]


ONE_MODEL = Study(
    stem="left-out-one-model",
    title="Llama-3.1-8B on two of each GPU, post recommendation, everything there at once",
    by=("arrivals", "gpu", "system"),
    points=gpu_points,
    panels=Panels(
        x="gpu",
        x_label="",
        series="system",
        metrics=("throughput", "hit_rate"),
        across="arrivals",
        titles={"users": "users one after the other", "requests": "requests shuffled"},
        names=SYSTEM_NAMES,
    ),
    over="system",
    base="prefillonly",
)


def burst_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """Gaps between users from Poisson to very bursty, at three quarters of x."""
    systems = deployments(SETUP, WORKLOADS[POST])
    rate = 0.75 * saturation(systems["prefillonly"], at_once(), seeds, jobs)
    return [
        ({"burstiness": shape, "system": name}, system, Load(f"{POST}:burstiness={shape:g}", rate))
        for shape in (1.0, 0.5, 0.2, 0.1)
        for name, system in systems.items()
    ]


BURSTS = Study(
    stem="left-out-bursts",
    title="Users in bursts, post recommendation at 0.75 x",
    setup=SETUP.title,
    by=("burstiness", "system"),
    points=burst_points,
    panels=Panels(
        x="burstiness",
        x_label="shape of gamma gaps between users (1: Poisson)",
        series="system",
        metrics=("mean_s", "p99_s"),
        names=SYSTEM_NAMES,
    ),
    over="system",
    base="prefillonly",
    compared=("mean_s", "p99_s"),
)


def _sharing_systems() -> dict[str, Deployment]:
    longest = WORKLOADS[POST]
    own = deploy(SETUP, "prefillonly", longest)
    return {
        "PrefillOnly": own,
        "PrefillOnly's engine, FCFS": own.with_policy("fcfs+full"),
        "chunked prefill": deploy(SETUP, "chunked", longest),
    }


def sharing_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """1,000 requests of fewer and fewer users, everything there at once, by users and shuffled."""
    points: list[Point] = []
    for mode, arrivals, rate in (("users", "all-at-once", None), ("requests", "requests", SHUFFLED_AT_ONCE)):
        for each in (1, 5, 20, 100):
            load = Load(f"{POST}:users={REQUESTS // each},requests_per_user={each},arrivals={arrivals}", rate)
            for name, system in _sharing_systems().items():
                points.append(({"arrivals": mode, "requests_per_user": each, "system": name}, system, load))
    return points


SHARING = Study(
    stem="left-out-sharing",
    title="How many requests share a profile, 1,000 in all, everything there at once",
    setup=SETUP.title,
    by=("arrivals", "requests_per_user", "system"),
    points=sharing_points,
    panels=Panels(
        x="requests_per_user",
        x_label="requests per user",
        series="system",
        metrics=("throughput", "hit_rate"),
        across="arrivals",
        titles={"users": "users one after the other", "requests": "requests shuffled"},
    ),
    over="system",
    base="PrefillOnly",
)


def share_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """Prompts as long as the paper's, of which less and less is the user's profile."""
    points: list[Point] = []
    for percent in (99, 90, 70, 50):
        low, high = (round(tokens * percent / 99) for tokens in (11_000, 17_000))
        own = round(14_150 * (1 - percent / 100))
        load = Load(f"{POST}:profile_std=0,clip={low}-{high},post_tokens={own},arrivals=all-at-once", None)
        for name, system in _sharing_systems().items():
            points.append(({"shared_percent": percent, "system": name}, system, load))
    return points


SHARE = Study(
    stem="left-out-share",
    title="How much of a prompt is shared, 50 requests per user, everything there at once",
    setup=SETUP.title,
    by=("shared_percent", "system"),
    points=share_points,
    panels=Panels(
        x="shared_percent",
        x_label="tokens of a prompt that are the user's profile (%)",
        series="system",
        metrics=("throughput", "hit_rate"),
    ),
    over="system",
    base="PrefillOnly",
)

TAIL_LONGEST = 80_000

TAIL_ORDERINGS = {
    "FCFS": "fcfs+full",
    "λ=0": "prefillonly:lam=0",
    "λ=50": "prefillonly:lam=50",
    "λ=500": "prefillonly:lam=500",
    "λ=500, jct=attention": f"srjf-calibrated:lam=500,jct=attention,longest={TAIL_LONGEST}+full",
}


def tail_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """Prompts that share nothing, of equal mean and growing spread, at nine tenths of what the engine can do."""
    system = deploy(SETUP, "prefillonly", TAIL_LONGEST)
    points: list[Point] = []
    for sigma in (0.25, 0.5, 1.0, 1.5):
        workload = f"credit-verification:users=1000,profile_mean=15000,profile_sigma={sigma:g},clip=500-{TAIL_LONGEST}"
        rate = 0.9 * saturation(system, at_once(workload), seeds, jobs)
        for name, policy in TAIL_ORDERINGS.items():
            points.append(({"sigma": sigma, "ordering": name}, system.with_policy(policy), Load(workload, rate)))
    return points


TAILS = Study(
    stem="left-out-tails",
    title="Log-normal lengths, nothing shared, 1,000 requests at 0.9 of capacity",
    setup=SETUP.title,
    by=("sigma", "ordering"),
    points=tail_points,
    panels=Panels(
        x="sigma",
        x_label="sigma of log-normal lengths (mean 15,000 tokens before clipping at 80,000)",
        series="ordering",
        metrics=("mean_s", "p99_s"),
    ),
    over="ordering",
    base="FCFS",
    compared=("mean_s", "p50_s", "p99_s", "longest_wait_s"),
)
