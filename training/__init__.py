"""How kimi-mini is made: generators of what it learns, the model, the training run, its scores. See README.md."""
