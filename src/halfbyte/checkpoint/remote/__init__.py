"""Remote checkpoints: headers by range requests, shards through a bounded cache.

address       parse hf://org/name@revision/folder, s3://bucket/folder, gs://... and other fsspec addresses; cache folder
store         file entries, checksums, and the interface of every store
hub           the Hugging Face Hub, pinned to one commit
object_store  object stores, through fsspec
download      resume reads after lost connections, errors and rate limits; fetch one shard, hashed on the fly
shard_cache   bounded shard cache: prefetch before use, evict after use; cache folders of Ray tasks
mirror        local mirror folder: small files, headers, identity and the shard cache
"""
