"""Documents on disk: graphs, machines, and how JSON and YAML are read and written.

Public modules: documents, fields, files, kinds, machine, read, validate, write.
"""
