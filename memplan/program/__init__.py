"""A traced iteration as calls over storages, and the names in it."""
