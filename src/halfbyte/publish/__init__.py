"""Publish a checkpoint: model card, report, provenance, verification and upload.

card         README.md for the Hub
report       the HTML report
contents     classification of the files of an output folder
provenance   inputs, code, environment, and the hash of every file
sbom         CycloneDX bill of materials
visible_text texts without local folders and hidden characters
verify       comparison of a folder with its provenance
hub          upload to a Hub repository
"""
