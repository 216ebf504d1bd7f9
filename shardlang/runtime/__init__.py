"""Running plans: the simulator, ``torch.distributed``, memory, launching."""
