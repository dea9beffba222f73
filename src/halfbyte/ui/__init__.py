"""Terminal output.

console                  results on stdout, messages on stderr, progress
escape                   escape control characters in untrusted text
library_logging          escape warnings and log lines of libraries
shell_quote, units       shell quoting, formatted numbers
advice, api_keys         recommendations with a level, masking of API keys
suggest                  suggestions for misspelled names
"""
