"""Steps of several ranks that train one module together.

Public modules: collectives, sharded.
"""
