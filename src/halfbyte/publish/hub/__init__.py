"""Upload an output folder to a Hub repository.

staging    files to upload: weights unchanged, evidence with local paths removed, traces for the dataset repository
secrets    detection of secrets and local paths
checks     checks before an upload
hub        all calls to the Hub
errors     errors of the Hub as messages for users
push       upload of shards during a run
run        the steps of `halfbyte publish`
"""
