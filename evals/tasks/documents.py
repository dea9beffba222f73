"""Which items a task asks: lm-eval sends every request of a run with the same thinking mode."""


def without_thinking(dataset):
    """Keep the items that are answered without thinking."""
    return dataset.filter(lambda doc: not doc["thinking"])
