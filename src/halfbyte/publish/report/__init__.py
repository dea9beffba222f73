"""`halfbyte report`: all that is known of an output folder, as one HTML file that needs no network and no script.

blocks      what a section is made of: sentences, tables, figures, things that open
page        the whole page, its policy (CSP) and its style
visible     text of strangers with everything visible that a browser would hide or act on
charts      lines, bars and intervals as SVG
heat        small pictures for experts x layers
the others  one section each: from evidence to blocks
"""
