"""Calibration: the texts that a recipe names, as rows of tokens, and what the model's layers show when they see them.

datasets.read_texts   files or the Hub -> texts, one at a time, never a whole data set
chat.load_template    conversations -> texts, by the checkpoint's own template, in a sandbox
vocabulary            texts -> tokens, by the checkpoint's vocabulary; none of its code is run
rows.make_rows        tokens -> rows, padded as ModelOpt does it, or packed
"""
