"""A checkpoint that is not on this disk: its headers by range requests, its shards through a bounded cache.

address.py    what a user may write: hf://org/name@revision/folder, s3://bucket/folder, gs://..., anything of fsspec
files.py      what is known of a file before it is here, and what every kind of store can do
hub.py        the Hugging Face Hub, pinned to one commit
objects.py    object stores, through fsspec
cache.py      where shards wait, and how many bytes of them there may be
patience.py   reading on after cuts, errors of the server and requests to slow down, until it is enough
download.py   one shard to the disk: resumed, hashed on the way, renamed when it is right
shelf.py      the shards that are here, never more bytes than allowed; ahead of use, and gone when they were used
tasks.py      folders of tasks that fetch for themselves, and what of them nobody needs any more
mirror.py     the folder that stands for the checkpoint: small files whole, headers, identity, and the shelf
"""
