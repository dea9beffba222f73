"""Calibration: tokenize a recipe's datasets, run the model on them and collect statistics of each layer.

datasets.read_texts    stream texts from files or the Hub
chat.load_template     render conversations with the checkpoint's chat template, in a sandbox
tokenizer              tokenize texts without running the checkpoint's code
token_rows.make_rows   arrange tokens in rows, padded as in ModelOpt or packed
"""
