"""Settings of other tools' training runs, from the files that people have, as options of sizing.

axolotl.yaml, TRL's, LLaMA-Factory's   ──trainers.py─────▶ Settings
ds_config.json, accelerate's YAML      ──distributed.py──▶ Settings
Settings, options ──apply.py──▶ SizeRequest, and lines that say what was read

Public modules: apply.

settings.py       begin here: what a file says, key by key
optimizers.py     names of optimizers
read.py           which tool's a file is, and the files that it names
"""
