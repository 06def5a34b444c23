"""The model and the data of the ZeRO-3 probe: small, real, and with sizes that do not divide evenly.

942,280 parameters in 39 tensors. Every tensor has a gradient that is not zero. Weights and data come from the run's
seed, so that no figure of another run fits this one.
"""

MICRO_BATCH = 2
LENGTH = 16
FEATURES = 53
WIDTH = 160
HIDDEN = 641
HEADS = 5
CLASSES = 37
BLOCKS = 3
# DeepSpeed swaps no tensor whose part of a rank is below 1 MiB (runtime/swap_tensor/utils.py, MIN_AIO_BYTES).
SWAPPED_BYTES = 1024 * 1024


class Shape:
    """Sizes of a network."""

    def __init__(self, width=WIDTH, hidden=HIDDEN, heads=HEADS, blocks=BLOCKS):
        self.width = width
        self.hidden = hidden
        self.heads = heads
        self.blocks = blocks


def swapped_shape(world):
    """Each rank's part of the block's two large weights is just large enough to be swapped."""
    return Shape(hidden=SWAPPED_BYTES // 4 * world // WIDTH + 1, blocks=1)


def _block(torch, shape):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.LayerNorm(shape.width)
            # No bias: a key's bias has no gradient in exact arithmetic, only noise.
            self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
            self.mix = nn.Linear(shape.width, shape.width)
            self.between = nn.LayerNorm(shape.width)
            self.up = nn.Linear(shape.width, shape.hidden)
            self.down = nn.Linear(shape.hidden, shape.width)

        def forward(self, hidden):
            size, length, width = hidden.shape
            parts = self.qkv(self.before(hidden)).view(size, length, 3, shape.heads, width // shape.heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
            scores = torch.matmul(query, key.transpose(-1, -2)) * (width // shape.heads) ** -0.5
            mixed = torch.matmul(torch.softmax(scores, dim=-1), value)
            hidden = hidden + self.mix(mixed.transpose(1, 2).reshape(size, length, width))
            return hidden + self.down(nn.functional.gelu(self.up(self.between(hidden))))

    return Block()


def network(torch, shape):
    """A small transformer over continuous inputs that returns its own mean loss."""
    nn = torch.nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(FEATURES, shape.width)
            self.blocks = nn.ModuleList([_block(torch, shape) for _ in range(shape.blocks)])
            self.last = nn.LayerNorm(shape.width)
            self.outputs = nn.Linear(shape.width, CLASSES)

        def forward(self, inputs, labels):
            hidden = self.inputs(inputs)
            for block in self.blocks:
                hidden = block(hidden)
            logits = self.outputs(self.last(hidden))
            return nn.functional.cross_entropy(logits.reshape(-1, CLASSES).float(), labels.reshape(-1))

    return Network()


def pair(torch, device, seed, low=None, shape=None):
    """Two networks with the same weights: the one for DeepSpeed, and the plain one.

    With ``low`` (bfloat16) the weights start on its grid, as DeepSpeed's fp32 masters do: from anywhere else the
    plain network rounds differently after the first steps, and the losses part by 4e-2.
    """
    shape = shape or Shape()
    torch.manual_seed(seed)
    first = network(torch, shape)
    if low is not None:
        first = first.to(low).float()
    second = network(torch, shape)
    second.load_state_dict(first.state_dict())
    return first.to(device), second.to(device)


def batches(torch, device, seed, rank, world, accumulation):
    """The whole batch, and this rank's micro-batches of it: equal parts, so the mean of means is the mean."""
    generator = torch.Generator().manual_seed(seed)
    size = MICRO_BATCH * accumulation * world
    inputs = torch.randn(size, LENGTH, FEATURES, generator=generator).to(device)
    labels = torch.randint(0, CLASSES, (size, LENGTH), generator=generator).to(device)
    return (inputs, labels), own_part((inputs, labels), rank, world, accumulation)


def own_part(batch, rank, world, accumulation):
    """A rank's micro-batches of a whole batch."""
    inputs, labels = batch
    own = []
    for micro in range(accumulation):
        start = (micro * world + rank) * MICRO_BATCH
        own.append((inputs[start : start + MICRO_BATCH], labels[start : start + MICRO_BATCH]))
    return own


def task(torch, device, seed):
    """An endless supply of fresh batches of one learnable task: the label is what a fixed linear map says.

    Returns a function from the step's number to a rank's micro-batches.
    """
    teacher = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(seed))

    def batch(step, rank, world, accumulation):
        generator = torch.Generator().manual_seed(seed + 1 + step)
        inputs = torch.randn(MICRO_BATCH * accumulation * world, LENGTH, FEATURES, generator=generator)
        labels = torch.matmul(inputs, teacher).argmax(dim=-1)
        return own_part((inputs.to(device), labels.to(device)), rank, world, accumulation)

    return batch
