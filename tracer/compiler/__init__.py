"""``torch.compile`` on the fake device: its graphs run as the kernels that a compiler would make of them."""
