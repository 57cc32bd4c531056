"""One training loop for every objective: settings, optimizers, the trainer, resuming, scaling out."""
