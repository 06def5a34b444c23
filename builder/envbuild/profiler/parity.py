"""The step against plain torch: the same weights, the same data, DeepSpeed's ranks against one process's whole batch.

Gradients are compared before the first step, because Adam divides a wrong scale out of the parameters. Loaded by its
path; what compares is the proof's own (probes/zero3_seen.py).
"""

STEPS = 4
_ADAMS = ("adam", "adamw", "deepspeedcpuadam", "fusedadam")


def compare(job, figures):
    """Train beside plain torch; what differs goes into ``figures``."""
    torch, seen, models = job.torch, job.seen, job.models
    low = job.low()
    figures["precision"] = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[low]
    torch.manual_seed(job.options.seed)
    network = models.network(torch, job.options.model, job.options.length)
    if low is not None:
        # On its grid, as DeepSpeed's fp32 masters are: from anywhere else the two round differently.
        network = network.to(low).float()
    plain = models.network(torch, job.options.model, job.options.length)
    plain.load_state_dict(network.state_dict())
    network, plain = network.to(job.device), plain.to(job.device)
    size = job.micro_batch * job.accumulation * job.world
    whole = tuple(
        part.to(job.device)
        for part in models.batch(torch, job.options.model, size, job.options.seed + 1, job.options.length)
    )
    own = [tuple(part[begin : begin + job.micro_batch] for part in whole) for begin in _begins(job)]

    plain.zero_grad()
    worker = _lowered(plain, low)
    worker(*whole).backward()
    expected = {name: value.grad.detach().float().clone() for name, value in worker.named_parameters()}
    del worker
    adam = _adam(job, plain)
    figures["optimizer_compared"] = adam is not None
    losses = _reference(torch, plain, whole, adam, low) if adam is not None else None

    engine = job.open_engine(network, job.config)
    if engine.gradient_clipping():
        # Its own default: none up to DeepSpeed 0.19.0, 1.0 in 0.19.5 (GRADIENT_CLIPPING_DEFAULT, runtime/constants.py).
        adam = losses = None
        figures["optimizer_compared"] = False
    ours = []
    for number in range(STEPS if adam is not None else 1):
        said = []
        for place, batch in enumerate(own):
            loss = engine(*batch)
            engine.backward(loss)
            if number == 0 and place == len(own) - 1:
                job.common.attempt(
                    figures, "gradients", lambda: seen.gradients(torch, job.deepspeed, network, expected)
                )
            engine.step()
            said.append(float(loss.detach()))
        ours.append(sum(said) / len(said))
    mean = torch.tensor(ours, device=job.device, dtype=torch.float64 if job.cuda is None else torch.float32)
    torch.distributed.all_reduce(mean)
    figures["losses"], figures["reference_losses"] = [float(each) / job.world for each in mean], losses
    if adam is not None:
        job.common.attempt(figures, "parameters", lambda: seen.parameters(torch, job.deepspeed, network, plain))
    return [engine]


def _begins(job):
    """Where this rank's micro-batches begin in the whole batch; equal parts, so the mean of means is the mean."""
    return [(micro * job.world + job.rank) * job.micro_batch for micro in range(job.accumulation)]


def _lowered(plain, low):
    import copy

    return plain if low is None else copy.deepcopy(plain).to(low)


def _adam(job, plain):
    """Plain torch's optimizer by the ds_config's; None where it is another one, or where gradients are clipped."""
    said = job.config.get("optimizer") or {}
    kind, given = str(said.get("type", "")).lower(), said.get("params") or {}
    if kind not in _ADAMS or float(job.config.get("gradient_clipping") or 0.0) or job.config.get("scheduler"):
        return None
    # DeepSpeed's Adam is AdamW unless it is told otherwise (runtime/engine.py), and decays nothing by default.
    decoupled = kind != "adam" or bool(given.get("adam_w_mode", True))
    named = {name: given[name] for name in ("lr", "eps", "weight_decay") if name in given}
    named.setdefault("weight_decay", 0.0)
    if "betas" in given:
        named["betas"] = tuple(given["betas"])
    optimizer = job.torch.optim.AdamW if decoupled else job.torch.optim.Adam
    return optimizer(plain.parameters(), **named)


def _reference(torch, plain, whole, adam, low):
    worker = _lowered(plain, low)
    pairs = list(zip(plain.parameters(), worker.parameters()))  # noqa: B905 (Python 3.7)
    losses = []
    for _ in range(STEPS):
        worker.zero_grad()
        loss = worker(*whole)
        loss.backward()
        for master, value in pairs:
            master.grad = value.grad.detach().float()
        adam.step()
        if low is not None:
            with torch.no_grad():
                for master, value in pairs:
                    value.copy_(master)
        losses.append(float(loss.detach()))
    return losses
