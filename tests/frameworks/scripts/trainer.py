"""Hugging Face Trainer: a small Llama with accumulation, evaluation and checkpoints."""

import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH, WORDS = 128, 1024


class Tokens(Dataset):
    def __init__(self, count):
        self.data = torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"input_ids": self.data[index], "labels": self.data[index]}


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = LlamaConfig(
    vocab_size=WORDS, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=LENGTH,
)  # fmt: skip
trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens(4096), eval_dataset=Tokens(64))
trainer.train()
trainer.save_model()
