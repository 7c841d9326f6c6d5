"""The language models that language.py and ddp.py train: Hugging Face models with random weights, built from configs.

Nothing is downloaded. The sizes are those of the published models; ``--layers`` and ``--hidden-size`` make smaller ones.
"""

from __future__ import annotations

import argparse

import torch
import transformers
from transformers import BertConfig, GPT2Config, LlamaConfig, PreTrainedConfig, PreTrainedModel, T5Config

MODELS = {
    "gpt2": (GPT2Config, transformers.GPT2LMHeadModel, {}),
    "gpt2-medium": (GPT2Config, transformers.GPT2LMHeadModel, {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "bert": (BertConfig, transformers.BertForMaskedLM, {}),
    "t5": (T5Config, transformers.T5ForConditionalGeneration, {"decoder_start_token_id": 0}),
    "llama-1b": (
        LlamaConfig,
        transformers.LlamaForCausalLM,
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which model is trained on what."""
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt2")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--hidden-size", type=int, help="another width")
    parser.add_argument("--vocabulary", type=int, help="another number of tokens")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=512, help="tokens in a sample")
    parser.add_argument("--dtype", default="float32", help="of the parameters: float32, bfloat16, ...")
    parser.add_argument("--amp", choices=("float16", "bfloat16"), help="compute in this by autocast")
    parser.add_argument("--checkpoint", action="store_true", help="compute activations again instead of keeping them")
    parser.add_argument("--steps", type=int, default=5)


def config(args: argparse.Namespace) -> PreTrainedConfig:
    """Return the chosen model's config."""
    kind, _, sizes = MODELS[args.model]
    sizes = {**sizes, "use_cache": False}
    if args.layers is not None:
        sizes["num_layers" if kind is T5Config else "num_hidden_layers"] = args.layers
    if args.hidden_size is not None:
        sizes["d_model" if kind is T5Config else "hidden_size"] = args.hidden_size
        if kind is LlamaConfig:
            sizes |= {"intermediate_size": 4 * args.hidden_size, "head_dim": args.hidden_size // 32}
    if args.vocabulary is not None:
        sizes |= {"vocab_size": args.vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    return kind(**sizes)


def build(args: argparse.Namespace, device: torch.device) -> PreTrainedModel:
    """Return the chosen model, made on the device."""
    _, model_class, _ = MODELS[args.model]
    with device:
        model = model_class(config(args)).to(getattr(torch, args.dtype))
    if args.checkpoint:
        model.gradient_checkpointing_enable()
    return model.train()


def batch(args: argparse.Namespace, vocabulary: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return made-up tokens to read and to predict."""
    tokens = torch.randint(0, vocabulary, (args.batch_size, args.sequence), device=device)
    return {"input_ids": tokens, "labels": tokens}
