"""Remote checkpoints: headers by range requests, shards through a bounded cache.

address.py         parse hf://org/name@revision/folder, s3://bucket/folder, gs://... and other fsspec addresses
store.py           file entries, checksums, and the interface of every store
hub.py             the Hugging Face Hub, pinned to one commit
object_store.py    object stores, through fsspec
cache_location.py  cache folder and size limit
retry.py           resume reads after lost connections, server errors and rate limits
download.py        fetch one shard: resumed, hashed on the fly, renamed once verified
shard_cache.py     bounded shard cache: prefetch before use, evict after use
task_folders.py    cache folders of Ray tasks, and their cleanup
mirror.py          local mirror folder: small files, headers, identity and the shard cache
"""
