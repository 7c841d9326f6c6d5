"""timm: a ResNet with timm's loss, optimizer, scheduler and average of weights, under DDP; prints what each step takes."""

import os
import time

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = timm.create_model("resnet18", num_classes=100).cuda().to(memory_format=torch.channels_last)
average = ModelEmaV3(model)
optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3)
scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2)
wrapped, criterion = DistributedDataParallel(model), LabelSmoothingCrossEntropy()
scaler = torch.amp.GradScaler()
last = time.perf_counter()
for step in range(5):
    images = torch.randn(16, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (16,), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = criterion(wrapped(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    average.update(model, step=step)
    scheduler.step_update(step)
    torch.cuda.synchronize()
    now = time.perf_counter()
    if torch.distributed.get_rank() == 0:
        print(f"step: {now - last:.9f}", flush=True)
    last = now
torch.save(model.state_dict(), "last.pt")
