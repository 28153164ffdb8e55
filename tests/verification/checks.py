"""What the verification plan asks for, and the tests that check it; names as in the plan."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """An entry of the plan."""

    name: str
    holds: str
    """In one line of Markdown."""
    tests: tuple[str, ...]
    """Node ids below ``tests/``, without parameters."""


FCFS, ORDER, EXACT, CIW = (f"theory/test_{n}.py" for n in ("fcfs", "priorities", "exact", "ciw"))
ORDERINGS, FILL = "engine/test_orderings.py", "engine/test_deadline_fill.py"
META, MEMORY = "engine/test_metamorphic.py", "engine/test_memory_invariants.py"
STATS, SERIES = "sim/test_stats.py", "sim/test_stats_series.py"

THEORY = (
    Check(
        "T1",
        "M/M/1, first come first served: `E[T] = 1/(μ−λ)`, `P(T>t) = e^{−(μ−λ)t}`",
        (f"{FCFS}::test_mm1_mean_and_distribution_of_the_sojourn",),
    ),
    Check("T2", "M/D/1: `E[W] = ρD/(2(1−ρ))`", (f"{FCFS}::test_md1_mean_and_distribution_of_the_wait",)),
    Check("T3", "M/D/1: Erlang's distribution of the wait", (f"{FCFS}::test_md1_mean_and_distribution_of_the_wait",)),
    Check(
        "T4",
        "M/G/1 (Pollaczek–Khinchine): first and second moment of the wait",
        (f"{FCFS}::test_mg1_first_and_second_moment_of_the_wait",),
    ),
    Check(
        "T5",
        "shortest job first: `E[W(x)] = W0/(1−ρ(x))²`",
        (f"{ORDER}::test_shortest_job_first_by_size_and_the_conservation_law",),
    ),
    Check(
        "T6",
        "priority classes (Cobham): `W_k = W0/((1−σ_{k−1})(1−σ_k))`",
        (f"{ORDER}::test_priority_classes",),
    ),
    Check(
        "T7",
        "SRPT (Schrage and Miller) is a lower bound, and is reached",
        (
            f"{ORDER}::test_srpt_bound_itself",
            f"{ORDER}::test_no_order_beats_srpt_on_any_sample_path",
            f"{ORDER}::test_the_srpt_bound_is_reached_where_nothing_could_be_interrupted",
        ),
    ),
    Check(
        "T8",
        "conservation law: `Σ ρ_k W_k = ρW0/(1−ρ)` in any order, and exactly on every sample path",
        (
            f"{ORDER}::test_shortest_job_first_by_size_and_the_conservation_law",
            f"{ORDER}::test_conservation_law_on_every_sample_path",
        ),
    ),
    Check(
        "T9",
        "a chunked prefill alone: TTFT is the sum of its chunks' steps, exactly",
        (f"{EXACT}::test_chunked_prefill_alone",),
    ),
    Check("T10", "a fixed batch: every gap is the step of that batch, exactly", (f"{EXACT}::test_decoding_alone",)),
    Check(
        "T11",
        "saturation at `λ = 1/E[S]`, and the backlog's slope beyond it",
        (f"{EXACT}::test_saturation", f"{EXACT}::test_saturation_of_the_paper_s_model"),
    ),
    Check(
        "T12",
        "Little's law on every sample path: `∫N(t)dt = Σ T_i`, waiting and running apart",
        (
            f"{EXACT}::test_little_s_law_on_every_sample_path",
            "sim/test_metrics_cases.py::test_little_s_law_is_exact_on_the_sample_path",
        ),
    ),
)

POLICIES = (
    Check(
        "P1",
        "limits: λ = 0 is static SRJF, λ = ∞ and equal work are FCFS, D = ∞ is a fixed chunk, an endless chunk is none",
        (
            f"{ORDERINGS}::test_without_aging_calibrated_is_static",
            f"{ORDERINGS}::test_unlimited_aging_is_fcfs",
            f"{ORDERINGS}::test_equal_work_is_fcfs",
            f"{FILL}::test_without_a_deadline_it_is_a_fixed_chunk_of_the_cap",
            f"{FILL}::test_a_chunk_as_long_as_the_longest_prompt_is_full_prefill",
        ),
    ),
    Check(
        "P2",
        "the aged order does not change with time",
        (f"{ORDERINGS}::test_the_aged_order_does_not_change_with_time",),
    ),
    Check(
        "P3",
        "overtaking is bounded by `(t̂_i − t̂_j)/λ`, and the bound is tight",
        (
            f"{ORDERINGS}::test_overtaking_is_bounded",
            f"{ORDERINGS}::test_overtaking_happens_and_its_bound_is_tight",
            "policies/test_orderings.py::test_nobody_overtakes_by_more_than_lam_allows",
        ),
    ),
    Check(
        "P4",
        "the chunk that fills a deadline is the largest that is safe, monotone in D, antitone in decodes",
        (
            f"{FILL}::test_proposition_1_safe_and_maximal",
            f"{FILL}::test_a_later_deadline_never_grants_less",
            f"{FILL}::test_more_decodes_never_get_a_longer_chunk",
            f"{FILL}::test_exact_predictions_violate_no_deadline_that_decoding_alone_meets",
        ),
    ),
    Check(
        "P5",
        "labels, a shift of time and a scale of time change nothing but themselves",
        (
            f"{META}::test_labels_label_nothing_else",
            f"{META}::test_shifting_all_arrivals_shifts_all_times",
            f"{META}::test_scaling_all_times_scales_all_times",
            f"{MEMORY}::test_shifting_all_arrivals_shifts_all_times",
            f"{MEMORY}::test_scaling_all_times_scales_all_times",
        ),
    ),
    Check(
        "P6",
        "a GPU twice as fast at twice the rate takes the same order",
        (f"{META}::test_a_gpu_twice_as_fast_at_twice_the_rate_takes_the_same_order",),
    ),
)

INVARIANTS = (
    Check(
        "I1",
        "tokens, budgets, seats, order and the clock, step by step",
        ("engine/test_invariants.py::test_invariants",),
    ),
    Check(
        "I2",
        "never idle while admissible work waits",
        ("engine/test_invariants.py::test_static_chunks_leave_no_prefill_waiting_that_has_a_seat",),
    ),
    Check(
        "I3",
        "each life of a request computes what it lacks, and a decode is one token",
        (f"{MEMORY}::test_each_life_computes_what_it_lacks_and_each_decode_gets_one_token",),
    ),
    Check(
        "I4",
        "blocks in use never exceed memory, and all come back",
        (f"{MEMORY}::test_blocks_in_use_never_exceed_memory_and_all_come_back",),
    ),
    Check("I5", "nobody is lost, and times add up", (f"{MEMORY}::test_nobody_is_lost_and_times_add_up",)),
    Check(
        "I6",
        "the pool in runs equals vLLM's pool block by block",
        ("sim/test_pool.py::test_equals_the_pool_block_by_block",),
    ),
    Check(
        "I7",
        "the store equals one written block by block",
        ("sim/test_prefixstore.py::test_equals_the_store_block_by_block",),
    ),
    Check("I8", "the queue equals a list", ("policies/test_queue.py::test_the_queue_equals_a_list",)),
)

DIFFERENTIAL = (
    Check(
        "D1",
        "the engine's steps are the real vLLM scheduler's, from recordings here and live under `make oracle`",
        (
            "engine/test_recordings.py::test_every_step_is_the_one_vllm_decided",
            "oracle/test_identity.py::test_every_policy_makes_vllm_s_batches",
            "oracle/test_identity.py::test_random_requests_in_little_memory",
            "oracle/test_level2.py::test_the_engine_s_batches_are_the_simulator_s",
        ),
    ),
    Check(
        "D2",
        "the engine equals a naive loop without SimPy, with and without memory",
        (
            "engine/test_reference.py::test_engine_equals_the_naive_loop",
            "engine/test_reference.py::test_stretches_change_nothing",
            "engine/test_memory.py::test_vllm_s_pool",
            "engine/test_memory.py::test_prefillonly_s_store",
            "engine/test_depth.py::test_any_policy",
        ),
    ),
    Check(
        "D3",
        "a single server equals Ciw's, first come first served and by priority",
        (
            f"{CIW}::test_first_come_first_served_is_ciw_s",
            f"{CIW}::test_shortest_job_first_is_ciw_s_with_sizes_for_classes",
        ),
    ),
    Check(
        "D4",
        "the default policy in vLLM is stock vLLM",
        ("oracle/test_identity.py::test_every_policy_makes_vllm_s_batches",),
    ),
    Check(
        "D5",
        "a cost model's fast ways equal its definition, and JSON gives it back",
        (
            "costmodels/test_models.py::test_a_closed_form_finds_what_bisection_finds",
            "costmodels/test_models.py::test_a_run_of_decodes_is_step_by_step",
            "costmodels/test_io.py::test_json_gives_the_model_back",
        ),
    ),
    Check(
        "D6",
        "equal bytes in every process, whatever the hash seed",
        (
            "engine/test_determinism.py::test_tables_are_byte_identical_whatever_the_hash_seed",
            "sim/test_store.py::test_bytes_do_not_depend_on_the_process",
        ),
    ),
)

STATISTICS = (
    Check(
        "S1",
        "MSER-5 equals its definition, cuts a known transient, flags drift",
        (
            f"{SERIES}::test_mser5_equals_its_definition",
            f"{SERIES}::test_mser5_cuts_a_constructed_transient",
            f"{SERIES}::test_mser5_flags_a_series_that_drifts_to_its_end",
        ),
    ),
    Check(
        "S2",
        "intervals cover as often as they say",
        (
            f"{STATS}::test_t_interval_covers_as_often_as_it_says",
            f"{STATS}::test_reproduction_interval_covers_another_study_s_mean",
            f"{SERIES}::test_batch_means_cover_as_often_as_they_say",
        ),
    ),
    Check(
        "S3",
        "paired comparisons equal SciPy's; common random numbers reduce variance as theory says",
        (
            f"{STATS}::test_paired_equals_scipy_s_t_test",
            f"{STATS}::test_common_random_numbers_reduce_variance_as_theory_says",
        ),
    ),
    Check(
        "S4",
        "Holm's correction and rankings",
        (
            f"{STATS}::test_holm_rejects_what_the_step_down_rule_does",
            f"{STATS}::test_groups_end_only_where_all_pairs_across_differ",
        ),
    ),
    Check(
        "S5",
        "the bootstrap draws seeds, not requests, and equals SciPy's BCa",
        (f"{STATS}::test_bootstrap_equals_scipy_s_bca", f"{STATS}::test_bootstrap_draws_seeds_and_not_requests"),
    ),
    Check(
        "S6",
        "metrics equal slow ones written from their definitions",
        (
            "sim/test_metrics_reference.py::test_summary_of_random_tables_equals_the_slow_reference",
            "sim/test_metrics_reference.py::test_summary_of_engine_runs_equals_the_slow_reference",
        ),
    ),
)

FUZZING = (
    Check(
        "F1",
        "a megabyte of anything is taken or refused with one sentence, within a gigabyte and seconds",
        ("fuzz/test_nasty.py::test_a_megabyte_takes_little_time_and_memory",),
    ),
    Check(
        "F2",
        "whatever the input, nothing but the house's own errors comes out",
        (
            "fuzz/test_anything.py::test_damaged_input_is_taken_or_refused",
            "traces/test_fuzz.py::test_damaged_files_are_read_or_refused_and_lint_agrees",
            "policies/test_spec.py::test_any_text_is_a_policy_or_a_policy_error",
            "costmodels/test_io.py::test_any_value_anywhere_is_a_model_or_a_cost_model_error",
        ),
    ),
    Check(
        "F3",
        "no code comes in with data: no pickles, no YAML tags, no paths out of the results folder",
        (
            "fuzz/test_data_is_data.py::test_no_module_loads_code_from_data",
            "fuzz/test_data_is_data.py::test_names_cannot_leave_the_results_folder",
        ),
    ),
)

GROUPS: dict[str, tuple[Check, ...]] = {
    "Theory": THEORY,
    "Policies: metamorphic and exact": POLICIES,
    "Invariants": INVARIANTS,
    "Differential": DIFFERENTIAL,
    "Statistics": STATISTICS,
    "Fuzzing": FUZZING,
}
