"""Lightning: a small Transformer with validation, metrics and checkpoints; prints what each step takes."""

import sys
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, WIDTH, BATCH = 1000, 128, 256, 8
strategy, devices = sys.argv[1], int(sys.argv[2])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, WORDS))

    def loss(self, batch):
        return nn.functional.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Timing(lightning.Callback):
    last = 0.0

    def on_train_batch_end(self, trainer, *_):
        now = time.perf_counter()
        if trainer.is_global_zero:
            print(f"step: {now - self.last:.9f}")
        self.last = now


def loader(count):
    data = TensorDataset(torch.randint(0, WORDS, (count, LENGTH)), torch.randint(0, WORDS, (count, LENGTH)))
    return DataLoader(data, batch_size=BATCH, num_workers=2)


trainer = lightning.Trainer(
    accelerator="gpu", devices=devices, strategy=strategy, precision="bf16-mixed", max_epochs=2, limit_val_batches=2,
    limit_train_batches=4, callbacks=[Timing()], logger=False, enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Model(), loader(16 * BATCH * devices), loader(2 * BATCH * devices))
