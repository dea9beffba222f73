"""`halfbyte report`: all evidence of an output folder as one HTML file without scripts or network access.

blocks      building blocks of a section: sentences, tables, figures, folds
page        the page with its content security policy and style
charts      line, bar and interval charts, and heat maps of experts by layer
overview, weights, measurements   the sections
"""
