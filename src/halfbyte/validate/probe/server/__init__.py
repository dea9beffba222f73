"""How the server behaves, whatever the model: the same for the same, what was asked for and no more, whole streams."""
