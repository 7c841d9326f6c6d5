"""The golden configurations: command lines of ``triosim`` by name.

A configuration runs in a scratch folder of its own. Placeholders stand for folders in it: {traces}, {topologies} and {plugins}
of ``examples``, {data} of ``tests/golden``, {tmp} for what is written there, whose files are compared.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Configuration:
    """Command lines that run one after the other, the last of which ends with ``status``.

    ``how`` is how the last one runs: in this process, or in one of its own that is interrupted after it began, whose output is
    read for a line and closed, or whose output goes to a full disk.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    status: int = 0
    how: str = "here"


ALL: list[Configuration] = []


def add(name: str, *commands: str, status: int = 0, how: str = "here") -> None:
    ALL.append(Configuration(name, tuple(tuple(shlex.split(one)) for one in commands), status, how))


def sim(name: str, command: str, *, status: int = 0, before: tuple[str, ...] = ()) -> None:
    """Add a simulation that writes its result."""
    written = " --output {tmp}/result.json" if status in (0, 3) else ""
    add(name, *before, f"simulate {command}{written}", status=status)


def memory(name: str, command: str) -> None:
    """Add a memory report, as tables and as JSON."""
    add(f"memory-{name}", f"memory {command}")
    add(f"memory-{name}-json", f"memory {command} --format json")


def bad(name: str, command: str, status: int = 2) -> None:
    add(f"error-{name}", command, status=status)


VGG11, VGG13, VGG19 = (f"{{traces}}/vgg{size}_a100_fake.json.gz" for size in (11, 13, 19))
RESNET, BERT, GPT2, LLAMA = (
    f"{{traces}}/{name}_a100_fake.json.gz" for name in ("resnet50", "bert", "gpt2", "llama_1b")
)
TINY_LLAMA, TINY_GPT2, MLP, T5, MIXTRAL, NETWORK, DEEPSEEK, EXPERTS = (
    f"{{data}}/{name}.json.gz"
    for name in ("llama", "gpt2", "mlp", "t5", "mixtral", "network", "deepseek_v3", "deepseek_experts")
)
BOX = "'Ring(4, bandwidth=100 GB/s)_FC(2, bandwidth=100 GB/s)_Switch(8, bandwidth=50 GB/s)'"
MEGATRON = "--tp-style megatron"
SEQUENCE = f"{MEGATRON} --sequence-parallel"

# One parallelism
sim("single", f"{VGG13} --csv {{tmp}}/figures.csv")
sim("single-inference", f"{BERT} --inference")
sim("single-iterations", f"{RESNET} --iterations 3")
sim("single-batch", f"{GPT2} --batch-size 4")
sim("single-accumulate", f"{VGG11} --micro-batches 4")
sim("dp", f"{VGG13} -p dp -n 4 --csv {{tmp}}/figures.csv --timeline {{tmp}}/timeline.json.gz")
sim("dp-replicate", f"{VGG11} -p dp -n 4 --dp-style replicate --timeline {{tmp}}/timeline.json")
sim("dp-global-batch", f"{VGG11} -p dp=8 --global-batch-size 512")
sim("ddp", f"{RESNET} -p ddp -n 8 -t dgx-a100 --timeline {{tmp}}/timeline.json")
sim("ddp-buckets", f"{RESNET} -p ddp -n 8 --bucket-size 5MiB --first-bucket-size 64KiB")
sim("ddp-gradient-dtype", f"{LLAMA} -p ddp -n 8 --gradient-dtype fp32")
sim("ddp-accumulate", f"{VGG13} -p ddp -n 4 --micro-batches 4 --copy-input --iterations 2")
sim("ddp-inference", f"{RESNET} -p ddp -n 4 --inference --copy-input")
sim("ddp-two-nodes", f"{BERT} -p ddp -n 16 -t dgx-a100")
sim("fsdp", f"{LLAMA} -p fsdp -n 8 --timeline {{tmp}}/timeline.json.gz")
sim("fsdp-prefetch", f"{LLAMA} -p fsdp=8 --option prefetch=3 --option reshard=no")
sim("fsdp-layer", f"{GPT2} -p fsdp=4 --option unit=layer --micro-batches 2 --option reduce=last")
sim("fsdp-model", f"{VGG11} -p fsdp=4 --option unit=model")
sim("fsdp-dtypes", f"{LLAMA} -p fsdp=8 --option parameter_dtype=bf16 --option shard_dtype=fp32 --gradient-dtype fp32")
sim("fsdp-hybrid", f"{LLAMA} -p dp=2,fsdp=8 -t dgx-h100 --gpu H100")
sim("zero1", f"{BERT} -p zero1 -n 8 --micro-batches 2")
sim("zero1-all-reduce", f"{BERT} -p zero1=4 --option reduce=all-reduce")
sim("zero2", f"{BERT} -p zero2 -n 8 --micro-batches 2 --bucket-size 50MiB")
sim("tp-gather", f"{GPT2} -p tp -n 4")
sim("tp-megatron", f"{GPT2} -p tp -n 4 {MEGATRON} --timeline {{tmp}}/timeline.json.gz")
sim("tp-sequence", f"{LLAMA} -p tp -n 8 {SEQUENCE}")
sim("tp-overlap", f"{LLAMA} -p tp -n 4 {SEQUENCE} --option overlap=ring")
sim("tp-embedding", f"{LLAMA} -p tp=8 {SEQUENCE} --option embedding_gradient=whole")
sim("tp-convolutions", f"{VGG13} -p tp=4 {MEGATRON}")
sim("tp-heads", f"{TINY_LLAMA} -p tp=4 {MEGATRON} --gpu A100")
sim("tp-latent", f"{DEEPSEEK} -p tp=2 {MEGATRON} --gpu H100")
sim("tp-t5", f"{T5} -p tp=2 {MEGATRON} --gpu A100")
sim("tp-network", f"{NETWORK} -p tp=2 {MEGATRON} --gpu A100")
sim("cp-ring", f"{LLAMA} -p cp -n 4")
sim("cp-gather", f"{LLAMA} -p cp=4 --option cp=all-gather --timeline {{tmp}}/timeline.json.gz")
sim("ep", f"{MIXTRAL} -p dp=2,ep=2 --gpu H100")
sim("ep-zipf", f"{MIXTRAL} -p ddp=4,ep=4 --gpu H100 --option load=zipf --option skew=1.2 --option capacity=1.25")
sim("ep-power-law", f"{MIXTRAL} -p dp=4,ep=2 --gpu H100 --option load=power-law --option seed=3 --iterations 2")
sim("ep-balanced", f"{EXPERTS} -p dp=4,ep=4 --gpu H100 --option load=balanced")
sim("ep-draws", f"{MIXTRAL} -p dp=4,ep=4 --gpu H100 --draws 6 --csv {{tmp}}/figures.csv")
sim("pp", f"{GPT2} -p pp -n 4 --timeline {{tmp}}/timeline.json.gz")
sim("local-sgd", f"{VGG11} -p local-sgd -n 4 --iterations 8")
sim("local-sgd-every", f"{VGG11} -p local-sgd -n 4 --iterations 3 --option every=2")
sim("parameter-server", f"{VGG11} -p parameter-server -n 5 --iterations 2")
sim(
    "parameter-server-async",
    f"{VGG11} -p parameter-server -n 6 --iterations 4 --option servers=2 --option updates=async --option staleness=1 "
    "--slow-gpus 5=2",
)
sim("hop", f"{VGG11} -p hop -n 8 --iterations 4")
sim(
    "hop-backup",
    f"{VGG11} -p hop -n 8 --iterations 6 --option graph=double-ring --option backup=1 "
    "-t 'switch(8, bandwidth=5 GB/s)' --slow-links uniform,spread=9,seed=1",
)
sim(
    "hop-skip",
    f"{VGG11} -p hop -n 6 --iterations 6 --option graph=ring --option staleness=1 --option skip=3 "
    "--option max_gap=2 --option order=serial --slow-gpus 2=3",
)
sim(
    "hop-graph",
    f"{VGG11} -p hop -n 4 --iterations 3 --option graph={{data}}/graph.txt --timeline {{tmp}}/timeline.json",
)

# Several
sim("dp-tp", f"{GPT2} -p dp=2,tp=4 {MEGATRON}")
sim("ddp-tp-gather", f"{LLAMA} -p ddp=2,tp=4")
sim("dp-pp", f"{GPT2} -p dp=2,pp=4 --micro-batches 8 --schedule 1f1b")
sim("pp-tp", f"{LLAMA} -p pp=2,tp=4 {MEGATRON} --option stages=whole --option sends=parts --timeline {{tmp}}/t.json.gz")
sim("fsdp-tp", f"{LLAMA} -p fsdp=4,tp=2 {SEQUENCE}")
sim("fsdp-pp", f"{LLAMA} -p fsdp=2,pp=4 --schedule 1f1b --micro-batches 8 -b 8")
sim("fsdp-pp-reshard", f"{LLAMA} -p fsdp=2,pp=2 --option reshard=yes --option reduce=each --micro-batches 4 -b 4")
sim(
    "zero1-pp-tp",
    f"{LLAMA} -p zero1=2,pp=2,tp=2 {SEQUENCE} --schedule 1f1b --micro-batches 4 -b 4 --gradient-dtype fp32",
)
sim("zero2-pp", f"{BERT} -p zero2=2,pp=4 --micro-batches 8")
sim("cp-tp", f"{LLAMA} -p cp=2,tp=4 {SEQUENCE}")
sim("cp-fsdp", f"{LLAMA} -p cp=2,fsdp=4 --option cp=all-gather")
sim("cp-dp-pp", f"{LLAMA} -p cp=2,dp=2,pp=2 --micro-batches 4 -b 4")
sim("ep-fsdp", f"{MIXTRAL} -p fsdp=4,ep=2 --gpu H100")
sim("ep-tp", f"{MIXTRAL} -p dp=2,tp=2,ep=2 --gpu H100 {SEQUENCE}")
sim("ep-pp", f"{MIXTRAL} -p dp=2,pp=2,ep=2 --gpu H100 --micro-batches 2 --schedule 1f1b")
sim("ep-hybrid", f"{EXPERTS} -p dp=2,fsdp=4,ep=2 --gpu H100")
sim("ep-zero", f"{EXPERTS} -p zero1=4,ep=4 --gpu H100")
sim("four-axes", f"{LLAMA} -p dp=2,pp=2,cp=2,tp=2 {SEQUENCE} --schedule 1f1b --micro-batches 4 -b 4 -t dgx-a100")
sim(
    "four-axes-experts",
    f"{MIXTRAL} -p fsdp=2,pp=2,tp=2,ep=2 {SEQUENCE} --gpu H100 --schedule 1f1b --micro-batches 2 -t dgx-h100",
)
sim("dp-dp-fsdp-tp", f"{LLAMA} -p dp=2,fsdp=2,tp=2 {MEGATRON} --recompute selective")
sim("ddp-replicate-tp", f"{VGG11} -p dp=2,tp=2 --dp-style replicate")
sim("local-sgd-tp", f"{BERT} -p local-sgd=2,tp=2 {MEGATRON} --iterations 4")

# Recomputation
for number, policy in enumerate(
    ("selective", "full", "checkpoint", "save=mm,attention", "save=mm/2,attention", "modules=mlp")
):
    chosen = GPT2 if policy == "modules=mlp" else LLAMA
    sim(f"recompute-{number}-{policy.split('=')[0]}", f"{chosen} -p ddp=4 --recompute {policy}")
sim("recompute-tp-pp", f"{LLAMA} -p tp=2,pp=2 {SEQUENCE} --recompute full --micro-batches 4 -b 4 --schedule 1f1b")
sim("recompute-fsdp", f"{LLAMA} -p fsdp=8 --recompute checkpoint")

# Pipelines
for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe"):
    sim(f"schedule-{schedule}", f"{BERT} -p pp=4 --micro-batches 16 -b 64 -t dgx-a100 --schedule {schedule}")
sim("schedule-virtual", f"{LLAMA} -p pp=4 --micro-batches 8 -b 8 --schedule interleaved --virtual-stages 4")
sim("schedule-file", f"{GPT2} -p pp=2 --micro-batches 2 --schedule {{data}}/schedule.csv --timeline {{tmp}}/t.json.gz")
sim("schedule-dualpipe-ep", f"{EXPERTS} -p pp=2,dp=2,ep=2 --gpu H100 --schedule dualpipe --micro-batches 4")
sim("schedule-zero-bubble-tp", f"{LLAMA} -p pp=2,tp=2 {MEGATRON} --schedule zero-bubble --micro-batches 4 -b 4")
sim("stages-named", f"{RESNET} -p pp=3 --stages layer2,layer4 --micro-batches 4")
sim("stages-equal", f"{LLAMA} -p pp=4 --option stages=equal --micro-batches 4 -b 4")
sim("stages-balanced", f"{BERT} -p pp=4 --balance-stages --slow-gpus 0-1=2 --micro-batches 8")
sim("pp-inference", f"{BERT} -p pp=4 --inference --micro-batches 4 --iterations 2")
sim("pp-default-batches", f"{VGG19} -p pp=4 -n 4 --copy-input")

# Operator times
sim("operator-times", f"{VGG11} -p ddp=4 --operator-times {{data}}/operator_times.csv")
sim("gpu-name", f"{RESNET} -p ddp=8 --gpu H100")
sim("gpu-old", f"{VGG13} -p ddp=4 --gpu V100-SXM2-32GB")
sim("gpu-file", f"{LLAMA} -p tp=4 {MEGATRON} --gpu {{data}}/gpu.yaml --price 2.5")
for model in ("auto", "linear", "roofline", "elementwise", "reduction", "forest"):
    sim(f"compute-model-{model}", f"{GPT2} -p dp=2,tp=2 {MEGATRON} -b 4 --compute-model {model}")
sim("compute-model-plugin", f"{VGG11} -p dp=4 -b 64 --compute-model {{plugins}}/square_root_model.py:SquareRoot")

# Networks, collectives and topologies
sim("network-analytical", f"{BERT} -p ddp=8 --network analytical")
sim("network-analytical-large", f"{LLAMA} -p fsdp=32,tp=8 {MEGATRON} -t dgx-h100 --network analytical")
sim(
    "network-photonic",
    f"{VGG11} -p ddp -n 16 -t wafer-84 --network photonic --collective-form steps --option setup=1ms",
)
sim(
    "network-photonic-file", f"{GPT2} -p tp=4 -t {{topologies}}/wafer-photonic.yaml --network photonic --option ports=4"
)
sim("network-photonic-default", f"{VGG11} -p fsdp=4 -t wafer-84 --network photonic")
sim("network-photonic-pp", f"{BERT} -p dp=2,pp=4 -t wafer-84 --network photonic --micro-batches 8 --schedule 1f1b")
sim(
    "network-photonic-ports",
    f"{VGG11} -p dp=2,tp=4 -t wafer-84 --network photonic --collective-form steps --option ports=4 "
    "--option ports_per_circuit=2 --option buffer='64 MiB' --option bandwidth='30 GB/s' --option latency='1 us'",
)
sim("network-kernel-python", f"{VGG13} -p fsdp=8 -t {{topologies}}/mesh.yaml --option kernel=python")
sim("network-kernel-numba", f"{VGG13} -p fsdp=8 -t {{topologies}}/mesh.yaml --option kernel=numba")
sim("network-fold-always", f"{VGG13} -p ddp=64 -t {BOX} --collective hierarchical --option fold=always --no-fold")
sim("network-fold-never", f"{VGG13} -p ddp=64 -t {BOX} --collective hierarchical --option fold=never")
sim("network-auto-box", f"{LLAMA} -p ddp=16,tp=4 {MEGATRON} -t {BOX} --collective auto")
sim("network-auto-analytical", f"{LLAMA} -p cp=4,dp=4 -t dgx-h100 --network analytical --gpu H100")
sim("network-ecmp", f"{GPT2} -p pp=4,dp=4 -t {{topologies}}/fat-tree.yaml --micro-batches 4 --links")
sim("tp-inference", f"{LLAMA} -p tp=4 {SEQUENCE} --inference -b 4")
sim("pp-host-overhead", f"{BERT} -p pp=4 --micro-batches 4 --host-overhead 20us --schedule 1f1b --iterations 2")
sim(
    "network-plugin",
    f"{VGG11} -p ddp=4 -t dgx-a100 --network {{plugins}}/alpha_beta_network.py:AlphaBetaNetwork --option alpha=5e-6 "
    "--option bandwidth='200 GB/s'",
)
for name in ("ring", "bidirectional-ring", "chain", "tree", "double-binary-tree", "direct", "halving-doubling", "auto"):
    for form in ("pipelined", "steps"):
        sim(f"collective-{name}-{form}", f"{VGG11} -p fsdp=8 --collective {name} --collective-form {form}")
sim("collective-in-switch", f"{VGG11} -p ddp=8 -t dgx-h100 --collective in-switch")
sim("collective-nvls", f"{VGG11} -p ddp=8 -t dgx-h100 --collective nvls")
sim("collective-hierarchical", f"{VGG11} -p ddp=64 -t {BOX} --collective hierarchical --option chunks=8")
sim("collective-hierarchical-steps", f"{VGG11} -p ddp=16 -t dgx-a100 --collective hierarchical --collective-form steps")
sim("collective-plugin", f"{VGG11} -p ddp=8 --collective {{plugins}}/hub_collective.py:Hub --collective-form steps")
sim(
    "collective-direct-experts",
    f"{MIXTRAL} -p dp=4,ep=4 --gpu H100 -t 'ring(4, bandwidth=25 GB/s)' --collective direct",
)
for name, size in (
    ("dgx-1-v100", 8),
    ("dgx-2", 16),
    ("dgx-h100", 16),
    ("dgx-h200", 8),
    ("dgx-b200", 32),
    ("a40-pcie", 2),
    ("tpu-v4", 16),
):
    sim(f"topology-{name}", f"{RESNET} -p ddp={size} -t {name}")
for number, text in enumerate(
    (
        "ring(8, bandwidth=50 GB/s)",
        "mesh(4x2, bandwidth=65 GB/s)",
        "torus(4x2, bandwidth=65 GB/s, latency=500 ns)",
        "switch(8, bandwidth=100 GB/s, overrides=[{{from: gpu0, to: switch0, bandwidth: 10 GB/s}}])",
        "fat_tree(8, k=4, bandwidth=50 GB/s)",
        "bus(8, bandwidth=50 GB/s)",
        "tree(8, bandwidth=50 GB/s)",
        "dgx-h100(calibration=none)",
    )
):
    sim(f"topology-{number}-{text.split('(')[0]}", f'{BERT} -p dp=2,tp=4 {MEGATRON} -t "{text}" --links')
sim("topology-box", f"{LLAMA} -p dp=8,pp=2,tp=4 {MEGATRON} -t {BOX} --micro-batches 4 -b 4")
for name, parallel in (
    ("asymmetric", "ddp=8"),
    ("degraded-link", "ddp=16"),
    ("fat-tree", "ddp=16"),
    ("mesh", "dp=4,tp=2"),
    ("nodes", "dp=4,tp=8"),
    ("uneven", "ddp=8"),
    ("dgx-like", "ddp=4"),
):
    host = " --copy-input" if name in ("nodes", "dgx-like") else ""
    sim(f"topology-file-{name}", f"{VGG13} -p {parallel} -t {{topologies}}/{name}.yaml{host}")

# Conditions
sim("slow-gpus", f"{RESNET} -p ddp=8 --slow-gpus 3=1.5 --slow-gpus 4-5=1.2")
sim("gpu-kinds", f"{RESNET} -p ddp=8 --gpu-kinds 4-7=V100-SXM2-32GB")
sim("gpu-kinds-pp", f"{BERT} -p pp=4 --gpu-kinds 2-3=H100-SXM --balance-stages --micro-batches 8 --schedule 1f1b")
sim("stragglers", f"{VGG11} -p ddp=8 --stragglers lognormal,spread=0.1,seed=1,every=iteration --iterations 3")
sim("stragglers-draws", f"{VGG11} -p ddp=8 --stragglers exponential,seed=5 --draws 10 --csv {{tmp}}/figures.csv")
sim("slow-links", f"{VGG11} -p ddp=8 --slow-links uniform,spread=9,seed=1")
sim("slow-links-draws", f"{VGG11} -p fsdp=8 -t {{topologies}}/mesh.yaml --slow-links lognormal,spread=0.5 --draws 5")
sim("event-gpu", f"{VGG13} -p ddp=4 --event at=10ms,gpu=3,slowdown=2 --event at=60ms,gpu=3,slowdown=1")
sim("event-link", f"{VGG13} -p ddp=4 -t dgx-a100 --event at=50ms,from=gpu0,to=switch0,bandwidth=1GB/s,both=true")
sim("event-late", f"{VGG11} -p ddp=4 --event at=100s,gpu=1,fails=true")
sim("event-gpu-fails", f"{VGG13} -p ddp=4 --event at=20ms,gpu=2,fails=true", status=2)
sim("event-link-fails", f"{VGG13} -p ddp=4 -t dgx-a100 --event at=20ms,from=gpu1,to=switch0,fails=true", status=2)
sim("slowdowns", f"{RESNET} -p ddp=8 --compute-slowdown all_reduce=1.2 --collective-slowdown 1.1")
sim(
    "slowdowns-by-kind",
    f"{RESNET} -p fsdp=8 --compute-slowdown all_reduce=1.1803265360514934,all_gather=1.09"
    " --timeline {tmp}/timeline.json.gz",
)
sim("slowdowns-sends", f"{BERT} -p pp=4 --micro-batches 8 --compute-slowdown send=1.3,copy=1.1 --copy-input")
sim("conditions-file", f"{RESNET} -p ddp=16 -t {{data}}/conditions.yaml --iterations 2 --draws 3")
sim("conditions-example", f"{VGG19} -p ddp=8 -t {{topologies}}/degraded-link.yaml --slow-gpus 1=2")
sim("host-overhead", f"{RESNET} -p ddp=4 --host-overhead '5 us' --timeline {{tmp}}/timeline.json.gz")
sim("host-overhead-large", f"{TINY_LLAMA} -p tp=4 {MEGATRON} --gpu H100 --host-overhead 30us --run-ahead 8")
sim("host-overhead-trace", f"{MLP} -p ddp=2 --gpu A100 --host-overhead trace")

# Folded and not
for name, command in (
    ("ddp", f"{VGG13} -p ddp=64 -t dgx-a100"),
    ("fsdp-tp", f"{LLAMA} -p fsdp=4,tp=4 {SEQUENCE} -t dgx-a100"),
    ("pp-tp-dp", f"{GPT2} -p pp=2,tp=4,dp=4 {MEGATRON} --schedule 1f1b --micro-batches 4 -t dgx-a100"),
    ("cp", f"{LLAMA} -p cp=4,dp=4 -t dgx-h100"),
    ("ep", f"{EXPERTS} -p dp=16,ep=8 --gpu H100 -t dgx-h100"),
    ("slow", f"{VGG11} -p ddp=16 -t dgx-a100 --slow-gpus 9=1.5"),
    ("mesh", f"{VGG11} -p fsdp=16 -t 'mesh(4x4, bandwidth=50 GB/s)'"),
):
    sim(f"fold-{name}", f"{command} --fold")
    sim(f"no-fold-{name}", f"{command} --no-fold")
sim("large-ddp", f"{VGG13} -p ddp=256 -t dgx-h100")
sim("large-pp", f"{LLAMA} -p dp=8,pp=4,tp=8 {SEQUENCE} --schedule 1f1b --micro-batches 8 -b 8 -t dgx-h100 --gpu H100")
sim("large-fsdp", f"{LLAMA} -p dp=16,fsdp=8 -t dgx-h100 --recompute selective --gpu H100")
sim("large-uneven", f"{VGG11} -p ddp=64 -t dgx-a100 --slow-links uniform,spread=1,seed=2")

# What is shown
sim("links", f"{GPT2} -p tp=4 -t {{topologies}}/mesh.yaml --links --by-layer --csv {{tmp}}/figures.csv")
sim("what-if", f"{LLAMA} -p dp=2,tp=4 {MEGATRON} --what-if --by-layer --price 2.10")
sim("what-if-nodes", f"{VGG13} -p ddp=16 -t {{topologies}}/degraded-link.yaml --what-if --links")
sim("tokens", f"{VGG11} -p ddp=4 --tokens-per-sample 100 --by-layer")
add("quiet", f"simulate {VGG11} -p ddp=4 -q --csv {{tmp}}/figures.csv")
add("json", f"simulate {VGG11} -p ddp=4 --format json")
sim("fail-on-oom", f"{LLAMA} -p fsdp=2 --gpu T4 --fail-on-oom", status=3)
sim("oom-note", f"{LLAMA} -p pp=2 --gpu T4")

# Captured and converted
sim("streams-pair", "{data}/streams_pair.json.gz -t 'ring(2, bandwidth=1 GB/s)' --iterations 2 --timeline {tmp}/t.json")
sim("streams-memory", "{data}/streams_memory.json.gz -t 'ring(4, bandwidth=1 GB/s)'")
sim("streams-gpu", "{data}/streams_32.json.gz -t dgx-h100 --gpu H100 --csv {tmp}/figures.csv --by-layer")
for name, flags in (("fold", "--fold"), ("no-fold", "--no-fold"), ("slow", "--slow-gpus 3=2 --host-overhead 5us")):
    sim(f"streams-{name}", f"{{data}}/streams_32.json.gz -t 'switch(32, bandwidth=50 GB/s)' {flags}")
sim("plugin-parallelism", f"{VGG11} -p {{plugins}}/local_sgd.py:LocalSGD -n 4 --iterations 4 --option every=2")
sim("plugin-trace", "{data}/text_trace.txt --trace-format {plugins}/text_trace.py -p ddp=4 --gpu A100")
sim("pytorch", "{data}/pytorch -p ddp=4 --gpu A100")
sim("csv-pair", "{data}/pair -p ddp=4 -t dgx-a100")
add("convert-pytorch", "convert {data}/pytorch {tmp}/trace.json")
add("convert-pair", "convert {data}/pair {tmp}/trace.json.gz")
add("convert-streams", "convert {data}/streams_32.json.gz {tmp}/streams.json")
add("show-vgg", f"show {VGG11}")
add("show-llama", f"show {LLAMA}")
add("show-pytorch", "show {data}/pytorch")
add("show-pair", "show {data}/pair")
add("show-streams", "show {data}/streams_32.json.gz")

# Described
for name, described, parallel in (
    ("gpt2-eager", "gpt2 --layers 2 --batch 2 --seq 256", "tp=2 --tp-style megatron"),
    ("llama-fused", "llama3-8b --layers 2 --seq 1024 --kernels fused --optimizer master-adamw", "fsdp=8"),
    ("llama-compiled", "llama3-8b --layers 2 --seq 1024 --kernels compiled", "fsdp=2,tp=4 --tp-style megatron"),
    ("llama-fp8", "llama3-8b --layers 2 --seq 1024 --products fp8 --optimizer fused-adamw",
     "fsdp=8 --option parameter_dtype=fp8"),
    ("gpt3-megatron", "gpt3-175b --layers 2 --dtype fp16 --attention math --gpu A100", "dp=2,pp=2,tp=8 --tp-style megatron "
     "--sequence-parallel --micro-batches 1 --recompute selective -t dgx-a100"),
    ("mixtral", "mixtral-8x7b --layers 2 --seq 512 --optimizer sgd", "dp=8,ep=8"),
    ("deepseek", "deepseek-v3 --layers 4 --seq 256 --optimizer none", "fsdp=8,ep=8"),
    ("deepseek-compiled", "deepseek-v3 --layers 4 --seq 256 --kernels compiled", "ddp=2,tp=4 --tp-style megatron"),
    ("bert-mixed", "bert-base --batch 8 --precision mixed --dropout 0", "ddp=8"),
    ("t5", "t5-small --batch 4 --seq 128 --dtype fp32", "zero1=4"),
    ("gemma", "gemma2-2b --layers 2 --seq 512", "cp=2,fsdp=4"),
    ("qwen", "qwen3-8b --layers 4 --seq 512", "pp=2,tp=2 --tp-style megatron --micro-batches 1 --schedule gpipe"),
    ("clip", "clip-vit-b-32 --batch 16 --precision mixed", "ddp=8"),
    ("convnext", "convnextv2-nano --batch 16 --dtype fp32", "ddp=8"),
    ("vit", "vit_b_16 --batch 16", "tp=4 --tp-style megatron"),
    ("resnet", "resnet18 --batch 32 --dtype fp32 --optimizer sgd --gpu T4", "ddp=4"),
    ("densenet", "densenet121 --batch 8 --precision mixed", "fsdp=4"),
    ("config", "{data}/llama_config.json --batch 4 --seq 128", "dp=2,pp=2,tp=2 --tp-style megatron"),
):  # fmt: skip
    sim(
        f"described-{name}",
        f"{{tmp}}/trace.json -p {parallel}",
        before=(f"describe {described} -o {{tmp}}/trace.json",),
    )
add("describe-named-itself", "describe {data}/llama_config.json --quiet -o {tmp}/t.json.gz", "show {tmp}/t.json.gz")

# Compared
add("compare", f"compare {RESNET} --gpus 4 --format json")
add("compare-table", f"compare {RESNET} --gpus 4")
add(
    "compare-llama",
    f"compare {TINY_LLAMA} --gpus 8 --format json --recompute selective --topology dgx-h100 --gpu H100 -b 8",
)
add("compare-global-batch", f"compare {VGG13} --gpus 8 --global-batch-size 256 --price 2 --format json")
add("compare-conditions", f"compare {VGG11} --gpus 4 --slow-gpus 2=1.5 --compute-slowdown 1.1 --format json")
add("compare-schedule", f"compare {BERT} --gpus 2 --schedule 1f1b --tp-style megatron --format json")
add("compare-draws", f"compare {MLP} --gpus 2 --gpu A100 --stragglers uniform,seed=2 --draws 4")
add("compare-draws-json", f"compare {VGG11} --gpus 2 --stragglers uniform,seed=2 --draws 4 --format json")
add("compare-option", f"compare {TINY_GPT2} --gpus 4 --option prefetch=2 --gpu H100 --network analytical --format json")
add("compare-uneven", f"compare {MLP} --gpus 6 --gpu A100")

# Topologies, schedules, catalogues
for number, name in enumerate(
    ("dgx-a100", "dgx-1-v100", "dgx-h100 -n 16", "wafer-84", f"{BOX}", "'torus(4x4, bandwidth=10 GB/s)'")
):
    add(f"show-topology-{number}", f"topology {name}")
for name in (
    "asymmetric",
    "degraded-link",
    "dgx-like",
    "fat-tree",
    "flows",
    "mesh",
    "nodes",
    "uneven",
    "wafer-photonic",
):
    add(f"show-topology-{name}", f"topology {{topologies}}/{name}.yaml")
for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe"):
    add(f"show-schedule-{schedule}", f"schedule {schedule} --stages 4 --micro-batches 8 -o {{tmp}}/schedule.csv")
    add(f"show-schedule-{schedule}-json", f"schedule {schedule} --stages 4 --micro-batches 8 --format json")
add("show-schedule-times", "schedule zero-bubble --stages 3 --micro-batches 6 --times 1,1.2,0.8")
add("show-schedule-virtual", "schedule interleaved --stages 2 --micro-batches 8 --virtual-stages 4 -o {tmp}/s.csv")
add("show-schedule-file", "schedule {data}/schedule.csv --stages 2 --micro-batches 2")
add("gpus", "gpus")
add("gpus-json", "gpus --format json")
add("gpus-one", "gpus 'NVIDIA A100-SXM4-40GB'")
add("gpus-one-json", "gpus H100 --format json")
add("gpus-file", "gpus {data}/gpu.yaml")
add("plugins", "plugins")
add("version", "--version")

# Memory
memory("single", f"{RESNET}")
memory("settings", f"{GPT2} --capacity 24GiB --allocator expandable_segments:True --depth 2 --no-workspace")
add("memory-snapshot", f"memory {VGG11} --gpu H100 --snapshot {{tmp}}/memory.pickle")
add("memory-oom", f"memory {LLAMA} --gpu T4 --fail-on-oom", status=3)
for parallel in ("ddp=4", "dp=4 --gradient-dtype fp32", "fsdp=8 --recompute full", "zero1=4", "zero2=4", "cp=4"):
    memory(parallel.split("=")[0], f"{LLAMA} -p {parallel} --gpu H100")
memory("tp", f"{LLAMA} -p tp=4 {SEQUENCE} --recompute selective")
memory("dp-pp-tp", f"{LLAMA} -p dp=2,pp=4,tp=2 --schedule 1f1b --micro-batches 8 -b 8 {SEQUENCE}")
for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe"):
    memory(f"schedule-{schedule}", f"{GPT2} -p pp=4 --micro-batches 8 --schedule {schedule}")
memory("experts", f"{MIXTRAL} -p fsdp=4,ep=2 --gpu H100 --option load=zipf")
memory("rank", f"{GPT2} -p pp=2 --micro-batches 4 --rank 1")
memory("hop", f"{VGG11} -p hop -n 8")
memory("parameter-server", f"{VGG11} -p parameter-server -n 5 --option servers=2")
memory("local-sgd", f"{VGG11} -p local-sgd -n 4")
memory("batch", f"{GPT2} -b 4 --micro-batches 2 --recompute checkpoint")
memory("inference", f"{LLAMA} -p tp=2 --inference")
memory("streams", "{data}/streams_memory.json.gz --rank 3")
memory("streams-all", "{data}/streams_memory.json.gz")

# Calibrated
add("calibrate-network", "calibrate network {data}/nccl.csv -t 'switch(8, bandwidth=100 GB/s)' -o {tmp}/box.yaml",
    "calibrate evaluate {data}/nccl.csv -t {tmp}/box.yaml",
    f"simulate {VGG11} -p ddp=8 -t {{tmp}}/box.yaml -o {{tmp}}/result.json")  # fmt: skip
add("calibrate-online", "calibrate network {data}/nccl.csv -t dgx-h100 --online -o {tmp}/box.yaml")
add("calibrate-evaluate-network", "calibrate evaluate {data}/nccl.csv --topology dgx-a100 --format json")
add("calibrate-evaluate", "calibrate evaluate {data}/gemm.csv --gpu H100")
add("calibrate-evaluate-json", "calibrate evaluate {data}/gemm.csv --gpu H100 --format json")

# Notes of what has no effect
sim("notes-schedule", f"{VGG11} -p ddp=2 --schedule 1f1b --virtual-stages 2 --stages features.5 --balance-stages")
sim("notes-tp", f"{VGG11} -p ddp=2 {SEQUENCE} --dp-style replicate")
sim("notes-buckets", f"{VGG11} -p fsdp=2 --bucket-size 1MiB --first-bucket-size 1MiB")
sim("notes-single", f"{VGG11} --collective tree --gradient-dtype bf16 --collective-form steps")
sim("notes-network", f"{VGG11} -p ddp=2 --network analytical --collective-form steps")
sim("notes-conditions", f"{VGG11} -p ddp=2 -t dgx-a100 --slow-gpus 5=2 --compute-slowdown send=1.2")
sim("notes-run-ahead", f"{VGG11} --run-ahead 4")
sim("notes-inference", f"{VGG11} -p ddp=2 --inference --recompute full --gradient-dtype bf16")
add("notes-memory", f"memory {VGG11} -p ddp=2 --schedule 1f1b --tp-style megatron")

# Errors
bad("topology", f"simulate {VGG11} -p ddp=8 -t dgx-h10")
bad("topology-key", f"simulate {VGG11} -p ddp=4 -t {{data}}/unknown_key.yaml")
bad("topology-negative", f"simulate {VGG11} -p ddp=4 -t {{data}}/negative_topology.yaml")
bad("topology-parameter", "topology 'ring(8, bandwidth=fast)'")
bad("topology-bandwidth", "topology 'switch(8, bandwidth=-1 GB/s)'")
bad("topology-missing", "topology nowhere.yaml")
bad("topology-small", f"simulate {VGG11} -p ddp=8 -t 'ring(4, bandwidth=1 GB/s)'")
bad("parallel", f"simulate {VGG11} -p dpp -n 4")
bad("parallel-size", f"simulate {VGG11} -p dp=0")
bad("parallel-twice", f"simulate {VGG11} -p dp=2,dp=2")
bad("parallel-same", f"simulate {VGG11} -p dp=2,ddp=2")
bad("parallel-alone", f"simulate {VGG11} -p hop=2,tp=2")
bad("parallel-count", f"simulate {VGG11} -p dp=2,tp=4 -n 6")
bad("option", f"simulate {VGG11} -p fsdp=2 --option prefecth=2")
bad("option-value", f"simulate {VGG11} -p fsdp=2 --option prefetch=x")
bad("option-word", f"simulate {VGG11} -p fsdp=2 --option unit=modell")
bad("option-form", f"simulate {VGG11} -p fsdp=2 --option prefetch")
bad("option-twice", f"simulate {VGG11} -p fsdp=2 --option prefetch=1 --option prefetch=2")
bad("option-every", f"simulate {VGG11} -p local-sgd=2 --option every=0")
bad("option-servers", f"simulate {VGG11} -p parameter-server -n 4 --option servers=4")
bad("option-graph", f"simulate {VGG11} -p hop -n 4 --option graph=rings")
bad("option-overlap", f"simulate {LLAMA} -p tp=2 --option overlap=ring")
bad("flag", f"simulate {VGG11} --paralel ddp")
bad("flag-value", f"simulate {VGG11} --tp-style megatronn")
bad("flag-number", f"simulate {VGG11} -p ddp -n four")
bad("command", "simulat x")
bad("no-trace", "simulate nothing.json")
bad("batch", f"simulate {GPT2} -p pp=4 --micro-batches 3")
bad("batch-both", f"simulate {VGG11} -p ddp=4 -b 8 --global-batch-size 16")
bad("batch-global", f"simulate {VGG11} -p ddp=4 --global-batch-size 10")
bad("truncated", "simulate {data}/truncated.json.gz")
bad("not-a-trace", "show {data}/gpu.yaml")
bad("trace-format", f"show {VGG11} --trace-format jason")
bad("pipeline-short", f"simulate {MLP} -p pp=16 --gpu A100 -b 16")
bad("stages", f"simulate {RESNET} -p pp=2 --stages layer9")
bad("stages-count", f"simulate {RESNET} -p pp=2 --stages layer2,layer3")
bad("schedule", f"simulate {GPT2} -p pp=2 --schedule 1f1")
bad("schedule-file", f"simulate {GPT2} -p pp=2 --micro-batches 2 --schedule {{data}}/broken_schedule.csv")
bad("schedule-micro-batches", f"simulate {GPT2} -p pp=4 --schedule dualpipe --micro-batches 2")
bad("schedule-command", "schedule dualpipe --stages 3")
bad("schedule-times", "schedule gpipe --stages 4 --times 1,2")
bad("schedule-virtual", f"simulate {GPT2} -p pp=2 --schedule 1f1b --virtual-stages 2")
bad("option-sends", f"simulate {LLAMA} -p pp=2,tp=2 {SEQUENCE} --option sends=parts --option stages=whole")
bad("ep-experts", f"simulate {MIXTRAL} -p dp=8,ep=8 --gpu H100")
bad("gpu", f"simulate {VGG11} --gpu H101")
bad("gpus", "gpus A1000")
bad("gpu-kinds", f"simulate {VGG11} -p ddp=2 --gpu-kinds 1=V10")
bad("slow-gpus", f"simulate {VGG11} -p ddp=2 --slow-gpus 1")
bad("slow-gpus-rank", f"simulate {VGG11} -p ddp=2 --slow-gpus 40=2")
bad("slow-links", f"simulate {VGG11} -p ddp=2 --slow-links unifrom,spread=1")
bad("slow-links-key", f"simulate {VGG11} -p ddp=2 --slow-links uniform,sped=1")
bad("event", f"simulate {VGG11} -p ddp=2 --event at=1s,gpu=0")
bad("event-link", f"simulate {VGG11} -p ddp=2 -t dgx-a100 --event at=1ms,from=gpu0,to=gpu9,bandwidth=1GB/s")
bad(
    "event-network",
    f"simulate {VGG11} -p ddp=2 -t dgx-a100 --network analytical --event at=1ms,from=gpu0,to=switch0,fails=true",
)
bad("slowdown", f"simulate {VGG11} -p ddp=2 --compute-slowdown all_redcue=1.2")
bad("draws", f"simulate {VGG11} -p ddp=2 --draws 5")
bad("network", f"simulate {VGG11} -p ddp=2 --network paket")
bad("collective", f"simulate {VGG11} -p ddp=2 --collective rign")
bad("collective-switch", f"simulate {VGG11} -p ddp=4 -t 'ring(4, bandwidth=1 GB/s)' --collective in-switch")
bad("compute-model", f"simulate {VGG11} -b 8 --compute-model forrest")
bad("operator-times", f"simulate {VGG11} --operator-times {{data}}/unknown_column.csv")
bad("recompute", f"simulate {LLAMA} --recompute fulll")
bad("recompute-module", f"simulate {LLAMA} --recompute modules=mpl")
bad("dtype", f"simulate {VGG11} -p ddp=2 --gradient-dtype fp23")
bad("bucket", f"simulate {VGG11} -p ddp=2 --bucket-size 5QB")
bad("sequence-parallel", f"simulate {LLAMA} -p tp=2 --sequence-parallel")
bad("cp-convolutions", f"simulate {VGG11} -p cp=2")
bad("ep-dense", f"simulate {LLAMA} -p dp=2,ep=2")
bad("host-overhead", f"simulate {VGG11} --host-overhead soon")
bad("plugin", f"simulate {VGG11} -p {{plugins}}/local_sgd.py:LocalSDG -n 2")
bad("plugin-file", f"simulate {VGG11} -p nowhere.py:Thing -n 2")
bad("output-folder", f"simulate {VGG11} -o nowhere/result.json")
bad("output-input", "convert {data}/gpt2.json.gz {data}/gpt2.json.gz")
bad("streams-parallel", "simulate {data}/streams_32.json.gz -p ddp")
bad("config", "describe {data}/broken_config.json -o {tmp}/trace.json")
bad("describe-name", "describe lama3-8b -o {tmp}/trace.json")
bad("describe-option", "describe resnet50 --attention math -o {tmp}/trace.json")
bad("describe-dtype", "describe gpt2 --dtype fp9 -o {tmp}/trace.json")
bad("memory-rank", f"memory {VGG11} --rank 3")
bad("memory-allocator", f"memory {VGG11} --allocator expandable:True")
bad("memory-capacity", f"memory {VGG11} --capacity much")
bad("compare-option", f"compare {VGG11} --gpus 4 --option prefetch=x")
bad("calibrate", "calibrate network {data}/gemm.csv -t dgx-h100 -o {tmp}/box.yaml")
bad("does-not-fit", f"simulate {VGG19} -p ddp=2 --gpu {{data}}/small_gpu.yaml --fail-on-oom", 3)

# How a process ends
add("interrupted", f"simulate {LLAMA} -p ddp=4 -t dgx-a100 --iterations 100000 -o {{tmp}}/result.json", status=130,
    how="interrupt")  # fmt: skip
add("broken-pipe", f"show {LLAMA}", status=1, how="pipe")
add("full-disk", f"show {VGG11}", status=2, how="full")
