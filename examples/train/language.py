"""Train a language model of Hugging Face transformers on made-up text: GPT-2, BERT, T5, Llama.

python language.py --model gpt2 --batch-size 8 --sequence 1024
python language.py --model llama-1b --dtype bfloat16 --batch-size 2 --sequence 4096 --checkpoint
"""

from __future__ import annotations

import argparse

import hugging_face
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    hugging_face.add_arguments(parser)
    parser.add_argument("--accumulate", type=int, default=1, help="batches before each step of the optimizer")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    model = hugging_face.build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        for _ in range(args.accumulate):
            batch = hugging_face.batch(args, model.config.vocab_size, device)
            with torch.autocast(device.type, getattr(torch, args.amp or "bfloat16"), enabled=args.amp is not None):
                loss = model(**batch).loss / args.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: done")


if __name__ == "__main__":
    main()
