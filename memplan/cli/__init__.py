"""The command `plan`: one command a file. The only folder that knows click and rich."""
