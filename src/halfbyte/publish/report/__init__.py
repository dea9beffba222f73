"""`halfbyte report`: all evidence of an output folder as one HTML file without scripts or network access.

blocks      building blocks of a section: sentences, tables, figures, folds
page        the page with its content security policy and style
visible     untrusted text with hidden characters spelled out
charts      line, bar and interval charts as SVG
heat        heat maps of experts by layer
the others  one section each
"""
