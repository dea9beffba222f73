"""Tool calls: made when expected, valid against their schemas, with the right ids, and not leaked into the text.

cases     requests, from the profile or a file;  vendor: files of the K2 vendor verifier
calls     checks of calls: declared, JSON, valid;  ids and leaked markup
trigger   when tools are called: precision, recall and F1 against a reference
probes    the probes
"""
