"""Megatron-Core: a GPT with tensor parallelism of 2 and a pipeline of 2, and a training loop of its own.

With ``--te`` its layers are TransformerEngine's, and sequences are parallel.
"""

import os
import sys
import time

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt import gpt_layer_specs as specs
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

WORDS, LENGTH, BATCH, MICRO_BATCHES = 1024, 256, 2, 4
fused = "--te" in sys.argv
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl", rank=rank, world_size=world)
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
model_parallel_cuda_manual_seed(123)
config = TransformerConfig(
    num_layers=4, hidden_size=256, num_attention_heads=4, bf16=True, params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=2, pipeline_model_parallel_size=2,
    sequence_parallel=fused, gradient_accumulation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
)  # fmt: skip
ends = {
    "pre_process": parallel_state.is_pipeline_first_stage(),
    "post_process": parallel_state.is_pipeline_last_stage(),
}
spec = specs.get_gpt_layer_with_transformer_engine_spec() if fused else specs.get_gpt_layer_local_spec()
model = Float16Module(config, GPTModel(config, spec, WORDS, LENGTH, **ends).cuda())
model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
settings = OptimizerConfig(
    lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True, clip_grad=1.0
)
optimizer = get_megatron_optimizer(settings, [model])
config.finalize_model_grads_func = finalize_model_grads
config.no_sync_func = model.no_sync
config.grad_scale_func = optimizer.scale_loss


def batches():
    while True:
        yield torch.randint(0, WORDS, (BATCH, LENGTH)).cuda(non_blocking=True)


def forward(data, model):
    words = next(data)
    positions = torch.arange(LENGTH, device="cuda").expand(BATCH, -1)
    mask = torch.ones((1, 1, LENGTH, LENGTH), dtype=torch.bool, device="cuda").triu(1)
    return model(words, positions, mask, labels=words), lambda out: (out.float().mean(), {})


run, data = get_forward_backward_func(), batches()
last = time.perf_counter()
for _ in range(5):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    run(
        forward_step_func=forward, data_iterator=data, model=model, num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False,
    )  # fmt: skip
    optimizer.step()
    torch.cuda.synchronize()
    now = time.perf_counter()
    if rank == world - 1:
        print(f"step: {now - last:.9f}", flush=True)
    last = now
