"""Small transformers over tokens, in plain torch, by name; and data for them.

Loaded by its path. Sizes are those of well-known models, so that figures can be compared with what others publish.
"""

import time

# width, layers, heads, vocabulary, and the length of a sequence where nothing else is said.
SIZES = {
    "tiny": (128, 2, 4, 512, 64),
    # Its large weights are 1 MiB, the least that DeepSpeed swaps (runtime/swap_tensor/utils.py, MIN_AIO_BYTES), so that
    # the four locked buffers of a transfer fit into the 8 MiB that many systems allow.
    "mini": (256, 4, 4, 1024, 64),
    "small": (384, 6, 6, 8192, 128),
    "base": (768, 12, 12, 32000, 256),
    "large": (1536, 24, 16, 32000, 512),
    "1b": (2048, 20, 16, 32000, 1024),
    "7b": (4096, 32, 32, 32000, 2048),
}
_POOL = 8


def parameters_of(name, length=None):
    """How many parameters a size has; a longer sequence has more places."""
    width, layers, _, vocabulary, usual = SIZES[name]
    block = 12 * width * width + 10 * width
    return (2 * vocabulary + (length or usual)) * width + layers * block + 2 * width


def network(torch, name, length=None):
    """A causal transformer that returns its own mean loss."""
    width, layers, heads, vocabulary, usual = SIZES[name]
    length = length or usual
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.LayerNorm(width)
            # No bias: a key's bias has no gradient in exact arithmetic, only noise.
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.mix = nn.Linear(width, width)
            self.between = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, hidden):
            size, steps, _ = hidden.shape
            parts = self.qkv(self.before(hidden)).view(size, steps, 3, heads, width // heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
            scores = torch.matmul(query, key.transpose(-1, -2)) * (width // heads) ** -0.5
            # Made here: a buffer would be a tensor that is no parameter, and engines treat those in their own ways.
            ahead = torch.ones(steps, steps, dtype=torch.bool, device=hidden.device).triu(1)
            mixed = torch.matmul(torch.softmax(scores.masked_fill(ahead, float("-inf")), dim=-1), value)
            hidden = hidden + self.mix(mixed.transpose(1, 2).reshape(size, steps, width))
            return hidden + self.down(nn.functional.gelu(self.up(self.between(hidden))))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.places = nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.last = nn.LayerNorm(width)
            self.outputs = nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens, following):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            hidden = self.tokens(tokens) + self.places(places)
            for block in self.blocks:
                hidden = block(hidden)
            logits = self.outputs(self.last(hidden))
            return nn.functional.cross_entropy(logits.reshape(-1, vocabulary).float(), following.reshape(-1))

    return Network()


def batch(torch, name, size, seed, length=None):
    """Random tokens, and what follows each."""
    _, _, _, vocabulary, usual = SIZES[name]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocabulary, (size, (length or usual) + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def feed(torch, name, size, seed, device, length=None, wait=0.0):
    """Micro-batches without end: made beforehand, so that waiting for one is nothing but ``wait`` seconds.

    They are copied to the device when they are asked for, as a training's are.
    """
    pool = [batch(torch, name, size, seed + number, length) for number in range(_POOL)]
    number = 0
    while True:
        if wait:
            time.sleep(wait)
        yield tuple(part.to(device) for part in pool[number % _POOL])
        number += 1
