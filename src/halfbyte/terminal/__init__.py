"""The command line's two ends: how arguments are read, and the only place that prints.

usage, suggest           global options anywhere, and an answer to what cannot be read;  *_options: of several commands
console, harmless        data on stdout, words on stderr; nothing that a stranger wrote acts on a terminal
libraries                the same for what Python prints by itself: warnings and log lines
keys                     what the environment holds and nobody is shown
pasted, units            words for a shell, numbers for people
"""
