"""Server behavior, independent of the model: repeatable answers, request options, streams, invalid requests."""
