"""Terminal output.

console   results on stdout, messages on stderr, progress, advice with a level
escape    untrusted text in terminals, JSON, shells and the logs of libraries; redaction of API keys
units     formatted sizes, durations and counts
suggest   suggestions for misspelled names
"""
