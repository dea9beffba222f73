"""Planning: actions, tensor names, shards, offsets and the fingerprint of an output, before anything is written."""
