"""From an output folder to a repository on the Hub.

staging    what is sent: weights as they lie, small files without this machine's paths
secrets    what must never be sent
checks     what must be true before a byte is
hub        the only module that talks to the Hub
answers    what the Hub says, in one sentence
traces     the dataset repository beside the model's
run        all of it, in order
"""
