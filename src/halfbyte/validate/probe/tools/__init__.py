"""Tool calls: do they come when they should, fit their schemas, carry the right ids, and stay out of the text?

cases     the requests, from the profile or from a file; vendor: the K2 vendor verifier's files
calls     one call: declared, JSON, valid; how two sets of calls differ
trigger   when tools are called: precision, recall and F1 against a reference
probes    what is asked of a server
"""
