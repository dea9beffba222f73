"""Model card: README.md for the Hub, generated only from the files of an output folder.

facts         inputs of the card: evidence, headers, config, the source's card, user options
markdown      escaping of values for Markdown
figures       number formatting
front_matter  YAML front matter
sections      one module per section; templates/ holds the text
write         writing README.md without overwriting a foreign one
"""
