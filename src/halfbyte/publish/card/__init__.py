"""The model card: README.md for the Hub, made from the files of an output folder and from nothing else.

known        all that a card may be made from: evidence, headers, config, the source's own card, what a user said
reading      values out of files that anybody may have written
markdown     the one way from such a value into Markdown
figures      numbers as the card prints them
front_matter the YAML block at the top; one module for each section below it; templates/ has only words
write        README.md itself, and whose README may be replaced
"""
