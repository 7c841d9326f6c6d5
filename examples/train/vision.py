"""Train an image classifier of torchvision on made-up images: ResNet, VGG, DenseNet, ViT.

python vision.py --model resnet50 --batch-size 64
python vision.py --model vit_b_16 --batch-size 32 --optimizer adamw --amp bfloat16
"""

from __future__ import annotations

import argparse

import torch
import torchvision


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="resnet50", help="a classifier of torchvision.models: resnet50, vgg13, vit_b_16"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dtype", default="float32", help="of the parameters: float32, bfloat16, ...")
    parser.add_argument("--amp", choices=("float16", "bfloat16"), help="compute in this by autocast")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def build(name: str, classes: int, image_size: int) -> torch.nn.Module:
    """Return a classifier with random weights; a vision transformer is built for one size of image."""
    more = {"image_size": image_size} if name.startswith("vit_") else {}
    return torchvision.models.get_model(name, weights=None, num_classes=classes, **more)


def main() -> None:
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(args.model, args.classes, args.image_size).to(device, getattr(torch, args.dtype))
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "float16")
    criterion = torch.nn.CrossEntropyLoss()

    model.train()
    for step in range(args.steps):
        images = torch.randn(
            args.batch_size, 3, args.image_size, args.image_size, device=device, dtype=getattr(torch, args.dtype)
        )
        if args.channels_last:
            images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(0, args.classes, (args.batch_size,), device=device)
        with torch.autocast(device.type, getattr(torch, args.amp or "bfloat16"), enabled=args.amp is not None):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"step {step}: done")


if __name__ == "__main__":
    main()
