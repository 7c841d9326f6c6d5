"""Steps of a model of timm, in mixed precision, as timm's ``benchmark.py`` times them; no data is loaded.

python timm_step.py --model resnet50d --batch-size 192 --image-size 224 --train --channels-last

A step of training zeroes the gradients, and is a forward and a backward pass and the update by SGD with Nesterov's momentum;
the tables' is of PyTorch 1.12, whose optimizer launches its kernels for each parameter, and keeps zeroed gradients. A step of
inference is a forward pass; an optimizer that has nothing to update ends it, so that it can be captured. ``--attention
products`` is what timm did before PyTorch had a fused kernel (2.0).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import timm
import torch
from timm.layers import set_fused_attn
from torch import nn

#: Models that timm no longer has, or takes for another one, as a model of today with other arguments.
RETIRED: dict[str, tuple[str, dict[str, object]]] = {
    "densenet121d": ("densenet121", {"stem_type": "deep"}),
    "densenet264": ("densenet161", {"growth_rate": 48, "block_config": (6, 12, 64, 48)}),
    "densenet264d_iabn": ("densenet161", {"growth_rate": 48, "block_config": (6, 12, 64, 48), "stem_type": "deep"}),
    **{f"ig_resnext101_32x{width}d": ("resnext101_32x32d", {"base_width": width}) for width in (16, 32, 48)},
    "regnety_040s_gn": ("regnety_040_sgn", {}),
    "semobilevit_s": ("mobilevit_s", {"attn_layer": "se"}),
    "vit_medium_patch16_reg4_256": ("vit_medium_patch16_reg4_gap_256", {"class_token": True, "global_pool": "token"}),
}


def build(name: str, image_size: int | None = None, attention: str = "fused") -> nn.Module:
    """Return a model with random weights; for images of its own size, or another one where it can take it."""
    set_fused_attn(attention == "fused")
    known, more = RETIRED.get(name, (name, {}))
    if not timm.is_model(known):
        raise ValueError(f"timm {timm.__version__} has no model '{name}'")
    with torch.device("cuda"):
        model: nn.Module = timm.create_model(known, in_chans=3, **more)
        own = model.pretrained_cfg
        if image_size not in (None, own["input_size"][-1]) and own.get("fixed_input_size"):
            model = timm.create_model(known, in_chans=3, img_size=image_size, **more)
    return model


def step_of(
    model: nn.Module, batch_size: int, image_size: int, *, train: bool, channels_last: bool
) -> Callable[[], object]:
    """Return a function that runs a step of a model on the GPU."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to("cuda", memory_format=layout).train(train)
    images = torch.randn(batch_size, 3, image_size, image_size, device="cuda").contiguous(memory_format=layout)
    if train:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
        return lambda: _train(model, images, optimizer)
    nothing = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-4)
    return lambda: (_infer(model, images), nothing.step())


def _train(model: nn.Module, images: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cuda"):
        output = model(images)
        output = output[0] if isinstance(output, tuple) else output
        labels = torch.empty(len(output), device="cuda", dtype=torch.long).random_(output.shape[1])
        nn.functional.cross_entropy(output, labels).backward()
    optimizer.step()


def _infer(model: nn.Module, images: torch.Tensor) -> None:
    with torch.no_grad(), torch.autocast("cuda"):
        model(images)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--attention", choices=("fused", "products"), default="fused")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args(given)
    model = build(args.model, args.image_size, args.attention)
    size = args.image_size or model.pretrained_cfg["input_size"][-1]
    step = step_of(model, args.batch_size, size, train=args.train, channels_last=args.channels_last)
    for _ in range(args.steps):
        step()


if __name__ == "__main__":
    main()
