"""The model and the data of the ZeRO-3 probe: small, real, and with sizes that do not divide evenly.

942,280 parameters in 39 tensors. Every tensor has a gradient that is not zero.
"""

MICRO_BATCH = 2
LENGTH = 16
FEATURES = 53
WIDTH = 160
HIDDEN = 641
HEADS = 5
CLASSES = 37
BLOCKS = 3
_SEED = 20240711


def _block(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.LayerNorm(WIDTH)
            # No bias: a key's bias has no gradient in exact arithmetic, only noise.
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.mix = nn.Linear(WIDTH, WIDTH)
            self.between = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, HIDDEN)
            self.down = nn.Linear(HIDDEN, WIDTH)

        def forward(self, hidden):
            size, length, width = hidden.shape
            parts = self.qkv(self.before(hidden)).view(size, length, 3, HEADS, width // HEADS)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
            scores = torch.matmul(query, key.transpose(-1, -2)) * (width // HEADS) ** -0.5
            mixed = torch.matmul(torch.softmax(scores, dim=-1), value)
            hidden = hidden + self.mix(mixed.transpose(1, 2).reshape(size, length, width))
            return hidden + self.down(nn.functional.gelu(self.up(self.between(hidden))))

    return Block()


def network(torch):
    """A three-block transformer over continuous inputs that returns its own mean loss."""
    nn = torch.nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(FEATURES, WIDTH)
            self.blocks = nn.ModuleList([_block(torch) for _ in range(BLOCKS)])
            self.last = nn.LayerNorm(WIDTH)
            self.outputs = nn.Linear(WIDTH, CLASSES)

        def forward(self, inputs, labels):
            hidden = self.inputs(inputs)
            for block in self.blocks:
                hidden = block(hidden)
            logits = self.outputs(self.last(hidden))
            return nn.functional.cross_entropy(logits.reshape(-1, CLASSES).float(), labels.reshape(-1))

    return Network()


def pair(torch, device, low):
    """Two networks with the same weights: the one for DeepSpeed, and the plain one.

    With ``low`` (bfloat16) the weights start on its grid, as DeepSpeed's fp32 masters do: from anywhere else the
    plain network rounds differently after the first steps, and the losses part by 4e-2.
    """
    torch.manual_seed(_SEED)
    first = network(torch)
    if low is not None:
        first = first.to(low).float()
    second = network(torch)
    second.load_state_dict(first.state_dict())
    return first.to(device), second.to(device)


def batches(torch, device, rank, world, accumulation):
    """The whole batch, and this rank's micro-batches of it: equal parts, so the mean of means is the mean."""
    generator = torch.Generator().manual_seed(_SEED + 1)
    size = MICRO_BATCH * accumulation * world
    inputs = torch.randn(size, LENGTH, FEATURES, generator=generator).to(device)
    labels = torch.randint(0, CLASSES, (size, LENGTH), generator=generator).to(device)
    own = []
    for micro in range(accumulation):
        start = (micro * world + rank) * MICRO_BATCH
        own.append((inputs[start : start + MICRO_BATCH], labels[start : start + MICRO_BATCH]))
    return (inputs, labels), own
