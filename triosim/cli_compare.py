"""The command ``triosim compare``: all strategies on one number of GPUs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from triosim import cli_conditions as c
from triosim import cli_options as o
from triosim.cli_command import check_plot, show_on_terminal


def compare(
    trace: o.TracePath,
    gpus: Annotated[int, typer.Option("--gpus", "-n", metavar="N", help="How many GPUs.", show_default=False)],
    trace_format: o.TraceFormat = None,
    batch_size: o.BatchSize = None,
    global_batch_size: o.GlobalBatchSize = None,
    inference: o.Inference = False,
    balance_stages: o.BalanceStages = False,
    schedule: o.Schedule = "gpipe",
    virtual_stages: o.VirtualStages = None,
    tp_style: o.TpStyle = "gather",
    bucket_size: o.BucketSize = "25 MiB",
    first_bucket_size: o.FirstBucketSize = "1 MiB",
    gradient_dtype: o.GradientDtype = None,
    recompute: o.Recompute = "none",
    topology: o.TopologyName = None,
    network: o.NetworkName = "packet",
    collective: o.CollectiveName = None,
    collective_form: o.CollectiveForm = "pipelined",
    copy_input: o.CopyInput = False,
    host_overhead: o.HostOverhead = None,
    compute_slowdown: c.ComputeSlowdown = None,
    collective_slowdown: c.CollectiveSlowdown = None,
    slow_gpus: c.SlowGpus = None,
    gpu_kinds: c.GpuKinds = None,
    stragglers: c.Stragglers = None,
    slow_links: c.SlowLinks = None,
    events: c.Events = None,
    option: o.PluginOptions = None,
    fold: o.Fold = None,
    gpu: o.Gpu = None,
    operator_times: o.OperatorTimes = None,
    compute_model: o.ComputeModel = "auto",
    tokens_per_sample: o.TokensPerSample = None,
    price: o.Price = None,
    plot: o.Plot = None,
    format: o.Format = "table",
    quiet: o.Quiet = False,
) -> None:
    """Compare all strategies on one number of GPUs, the fastest first.

    Speed-up and efficiency are those of the samples per second against one GPU: data parallelism gives each GPU the
    trace's batch, the others divide the work of one batch. Give --global-batch-size to hold the batch fixed. What an
    option is about (--schedule: pp) is where it holds; --tp-style is that of the combinations.

    [bold]Examples[/]

    [cyan]triosim compare trace.json --gpus 8 --topology dgx-h100 --plot strategies.png[/]
    [cyan]triosim compare trace.json --gpus 8 --global-batch-size 1024 --format json[/]

    One GPU is slow, pipelines run 1F1B, and a GPU costs 2.50 an hour:
    [cyan]triosim compare trace.json -n 8 --slow-gpus 3=1.5 --schedule 1f1b --price 2.5[/]
    """
    from triosim.output import check_outputs

    check_outputs(plot, reading=(trace, topology, operator_times, schedule))
    check_plot(plot)
    from triosim.comparison import compare as run_comparison
    from triosim.reports.progress import Progress

    with Progress(shown=not quiet) as progress:
        comparison = run_comparison(
            trace,
            gpus,
            gpu=gpu,
            trace_format=trace_format,
            topology=topology,
            started=lambda strategy: progress.labelled(strategy.label),
            network=network,
            collective=collective,
            collective_form=collective_form,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            training=not inference,
            balance_stages=balance_stages,
            schedule=schedule,
            virtual_stages=virtual_stages,
            tp_style=tp_style,
            bucket_size=bucket_size,
            first_bucket_size=first_bucket_size,
            gradient_dtype=gradient_dtype,
            recompute=recompute,
            copy_input=copy_input,
            host_overhead=host_overhead,
            conditions=c.given(
                compute_slowdown=compute_slowdown,
                collective_slowdown=collective_slowdown,
                slow_gpus=slow_gpus,
                gpu_kinds=gpu_kinds,
                stragglers=stragglers,
                slow_links=slow_links,
                events=events,
            ),
            options=o.key_values(option or ()),
            fold=fold,
            operator_times=operator_times,
            compute_model=compute_model,
            tokens_per_sample=tokens_per_sample,
            price=price,
            progress=progress,
        )
    if plot is not None:
        comparison.plot(plot)
    if format == "json":
        sys.stdout.write(comparison.to_json())
    elif not quiet:
        from triosim.reports.comparison_table import render

        show_on_terminal(render(comparison))
