"""``prefillsim serve-hybrid``: an OpenAI-compatible server for answers of one token."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from experiments.commands import options as o

ENGINE, SERVER = "Engine", "Server"


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve-hybrid")(serve_hybrid)


def serve_hybrid(
    model: Annotated[str, typer.Option("--model", metavar="DIR|NAME", help="The model.", rich_help_panel=ENGINE)],
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="POLICY", help="Who is next.", rich_help_panel=ENGINE)
    ] = "prefillonly",
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0: any free one.", rich_help_panel=SERVER)
    ] = 8000,
    served_name: Annotated[
        str | None,
        typer.Option("--served-model-name", metavar="NAME", help="As requests say it.", rich_help_panel=SERVER),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="TYPE", help="Of weights and KV.", rich_help_panel=ENGINE)
    ] = "auto",
    load_format: Annotated[
        str, typer.Option("--load-format", metavar="HOW", help="dummy: random weights.", rich_help_panel=ENGINE)
    ] = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_blocks: Annotated[
        int | None,
        typer.Option("--kv-blocks", min=0, metavar="N", help="Of the prefix store.", rich_help_panel=ENGINE),
    ] = None,
    kv_block_size: Annotated[
        int, typer.Option("--kv-block-size", min=1, metavar="N", help="Tokens of a block.", rich_help_panel=ENGINE)
    ] = 16,
    suffix: Annotated[
        str,
        typer.Option(
            "--suffix",
            metavar="HOW",
            help="keep prompts' ends, or discard what no waiting prompt shares.",
            rich_help_panel=ENGINE,
        ),
    ] = "keep",
    engine_arg: Annotated[
        list[str] | None,
        typer.Option("--engine-arg", metavar="NAME=JSON", help="Like chunk=512, device=cpu.", rich_help_panel=ENGINE),
    ] = None,
    cost_model: o.CostModel = None,
    slo: o.Slo = None,
    plugin: o.Plugins = None,
    seed: o.Seed = 0,
) -> None:
    """Serve /v1/completions with max_tokens=1: how probable each allowed token is, in the policy's order.

    Prompts are prefilled whole and one at a time, in little memory; shared beginnings are kept. Ctrl-C ends it.
    """
    from experiments import output
    from experiments.config import ConfigError
    from experiments.hybrids import hybrid_options
    from experiments.replays import engine_arguments
    from gpu_runner.hybrid.completions import Served
    from gpu_runner.hybrid.options import NEEDED, SERVER_NEEDS, need, open_hybrid
    from gpu_runner.hybrid.service import Service
    from gpu_runner.settings import Settings

    if suffix not in ("keep", "discard"):
        raise ConfigError(f"--suffix {suffix} is not one of keep and discard")
    options = hybrid_options(
        model,
        engine_arguments(engine_arg or ()),
        {},
        dtype=dtype,
        load_format=load_format,
        max_model_len=max_model_len,
        blocks=kv_blocks,
        block_size=kv_block_size,
        seed=seed or 0,
    )
    settings = Settings(
        policy=policy, cost_model=cost_model, slo=slo or "", plugins=tuple(plugin or ()), discard=suffix == "discard"
    )
    need((*NEEDED, *SERVER_NEEDS))
    with open_hybrid(options, settings) as engine:
        from gpu_runner.hybrid.loading import tokenizer_of
        from gpu_runner.hybrid.server import listen, make_app, run

        served = Served(served_name or model, engine.vocab, engine.max_model_len, tokenizer_of(options))
        with listen(host, port) as sock:
            engine.warm_up()
            app = make_app(Service(engine), served)
            where = sock.getsockname()
            output.say(f"serving {served.name} with {policy} at http://{where[0]}:{where[1]}/v1")
            sys.stdout.flush()
            run(app, sock)
