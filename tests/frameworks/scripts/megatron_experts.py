"""Megatron-Core: a GPT whose experts are on different ranks, and what each layer sends to them; a training loop of its own.

With ``--te`` its layers are TransformerEngine's, with a grouped product of the experts.
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
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.moe_layer import MoELayer

fused = "--te" in sys.argv
if not fused:
    moe_utils.te_general_gemm = None  # version 0.16.1 lacks the name where TransformerEngine is not installed
WORDS, LENGTH, BATCH, EXPERTS = 1024, 256, 2, 8
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl", rank=rank, world_size=world)
parallel_state.initialize_model_parallel(expert_model_parallel_size=world)
model_parallel_cuda_manual_seed(123)
config = TransformerConfig(
    num_layers=2, hidden_size=256, num_attention_heads=4, bf16=True, params_dtype=torch.bfloat16,
    num_moe_experts=EXPERTS, moe_router_topk=2, moe_token_dispatcher_type="alltoall", add_bias_linear=False,
    expert_model_parallel_size=world, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.01,
    moe_grouped_gemm=fused, gradient_accumulation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
)  # fmt: skip
spec = specs.get_gpt_layer_local_spec(num_experts=EXPERTS)
if fused:
    spec = specs.get_gpt_layer_with_transformer_engine_spec(num_experts=EXPERTS, moe_grouped_gemm=True)
model = GPTModel(config, spec, WORDS, LENGTH).cuda().bfloat16()
model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-4, bf16=True, params_dtype=torch.bfloat16), [model])
config.finalize_model_grads_func = finalize_model_grads


def show(layer, *_):
    dispatcher = layer.token_dispatcher
    sizes = [[int(one) for one in splits] for splits in (dispatcher.input_splits, dispatcher.output_splits)]
    sys.stdout.write(f"rank {rank} sent {sizes[0]} got {sizes[1]}\n")


for one in model.modules():
    if isinstance(one, MoELayer):
        one.register_forward_hook(show)


def forward(data, model):
    words = torch.randint(0, WORDS, (BATCH, LENGTH)).cuda(non_blocking=True)
    positions = torch.arange(LENGTH, device="cuda").expand(BATCH, -1)
    mask = torch.ones((1, 1, LENGTH, LENGTH), dtype=torch.bool, device="cuda").triu(1)
    return model(words, positions, mask, labels=words), lambda out: (out.float().mean(), {})


run = get_forward_backward_func()
last = time.perf_counter()
for _ in range(3):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    run(
        forward_step_func=forward, data_iterator=None, model=model, num_microbatches=2,
        seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False,
    )  # fmt: skip
    optimizer.step()
    torch.cuda.synchronize()
    now = time.perf_counter()
    if rank == 0:
        print(f"step: {now - last:.9f}", flush=True)
    last = now
