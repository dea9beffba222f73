"""Stage 2: everything that will be written, decided before a byte is: fates, names, shards, offsets, fingerprint."""
