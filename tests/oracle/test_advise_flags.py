"""The command lines of an advice, read by vLLM's own parser."""

from pathlib import Path

import pytest
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from experiments.advice.flags import start_of
from experiments.advice.trace import task_of
from experiments.draft import Draft
from gpu_runner.settings import Settings


@pytest.mark.parametrize("depth", [1, 2])
def test_vllm_reads_the_command_lines(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:0{k}.0000000,{200 + 37 * k},20" for k in range(9)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    draft = Draft()
    values = {"trace.file": str(path), "slo": "ttft:1000,tpot_p99:25", "cost_model": "h100-llama3.1-70b-fp8-tp2"}
    for key, value in {"name": "advise", "engine.pipeline_depth": depth, **values}.items():
        draft.put(key, value, "test")
    task = task_of(draft)
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    for policy in ("vllm-default", "fcfs+token-budget:budget=2048,threshold=512", "sloweave:margin=c99", "fcfs+full"):
        start = start_of(task, policy)
        read = parser.parse_args(start.arguments)
        assert read.max_num_seqs == 256
        assert read.tensor_parallel_size == 2
        assert read.async_scheduling is (depth == 2)
        assert read.enable_prefix_caching is True
        if not start.stock:
            assert Settings.of(read.additional_config).policy == policy
