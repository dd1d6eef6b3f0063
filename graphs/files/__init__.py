"""Documents on disk: graphs, machines, and how JSON and YAML are read and written.

Doors: files, documents, fields, machine, validate.
"""
