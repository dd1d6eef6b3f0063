"""Files of other tools: graphs from them, and graphs for them. Begin with formats.py."""
