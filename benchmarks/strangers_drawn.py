"""Models drawn by chance from the libraries that people train with; strangers_drawn.txt is the list, fixed
before the faults that they would show were looked for.

    nice python benchmarks/strangers_drawn.py [--seed 30]     draws the list anew

Each library's candidates are enumerated by a program (its auto classes, its lists of models, its modules'
classes), shuffled by the seed, and taken from the front: those that build at a tiny size, and that eager
PyTorch trains on two batches within SECONDS, until the library has its number. The packages, beyond the
project's own: timm diffusers torchvision torchaudio torch_geometric e3nn gpytorch nflows x-transformers
torchdiffeq torchao peft pytorch-tabnet entmax. A library that is not installed has no models.
"""

import argparse
import importlib
import multiprocessing
import os
import random
import sys
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).with_name("strangers_drawn.txt")
SECONDS, MOST = 8.0, 13_000_000
NUMBERS = {
    "transformers": 34,
    "timm": 12,
    "torch_geometric": 16,
    "diffusers": 6,
    "torchaudio": 6,
    "peft": 5,
    "x_transformers": 4,
    "gpytorch": 3,
    "nflows": 4,
    "torchdiffeq": 2,
    "e3nn": 4,
    "entmax": 3,
    "pytorch_tabnet": 2,
    "torchao": 3,
}


def known(*names):
    """What the other lists have of a family, in lower case."""
    from strangers import strangers

    families = strangers(drawn=False)
    return {model.split()[0].lower() for family in names for model in families[family]}


def candidates(library):
    """Pairs of a name and a function that returns an Iteration; a name may come several times, with other
    forms of its inputs."""
    import strangers_drawn_graphs as graphs
    import strangers_drawn_images as images
    import strangers_drawn_small as small
    import strangers_drawn_transformers as texts

    match library:
        case "transformers":
            return texts.candidates(known("transformers"))
        case "peft":
            return texts.tuners()
        case "timm":
            return images.of_timm(known("timm"))
        case "diffusers":
            taken = known("diffusers")
            return ((name, make) for name, make in images.of_diffusers(set()) if not in_list(name, taken))
        case "torch_geometric":
            taken = known("PyTorch Geometric")
            return ((name, make) for name, make in graphs.candidates(set()) if not in_list(name, taken))
        case "pytorch_tabnet":
            return small.of_tabnet()
        case _:
            return getattr(small, f"of_{library}")()


def in_list(name, taken):
    """GCN2Conv and SD3Transformer2DModel are there as GCN2 and SD3."""
    for end in ("Conv", "Transformer2DModel", "Transformer3DModel", "Model", "Aggregation", "Transformer"):
        name = name.removesuffix(end)
    return name.lower() in taken


def forms(library):
    found = defaultdict(list)
    for name, make in candidates(library):
        found[name].append(make)
    return found


def drawn(library, names):
    """The functions that make the models of the list, by name; a name is followed by the form's number."""
    try:
        found = forms(library)
    except ImportError:
        return {}
    return {name: found[name][form] for name, form in names}


def listed():
    """By library, names with the number of their form."""
    found = defaultdict(list)
    for line in LIST.read_text().splitlines() if LIST.exists() else ():
        if line and not line.startswith("#"):
            library, name, form = line.split("\t")
            found[library].append((name, int(form)))
    return found


def of_drawn():
    return {f"{library}, drawn": drawn(library, names) for library, names in listed().items()}


# ── drawing ─────────────────────────────────────────────────────────────────────────────────────────


def trains(make, pipe):
    """Sends whether eager PyTorch trains it on two batches."""
    import torch
    from memplan.model.iteration import forward

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    try:
        torch.manual_seed(0)
        iteration = make()
        size = sum(each.numel() for each in iteration.module.parameters())
        if size > MOST:
            raise ValueError(f"{size:,} parameters")
        for seed in (1, 2):
            torch.manual_seed(seed)
            loss, _outputs = forward(iteration, iteration.module, make().inputs)
            if loss is None:
                raise ValueError("it has no loss")
            loss.backward()
            if not torch.isfinite(loss):
                raise ValueError("its loss is not finite")
        pipe.send(None)
    except BaseException as error:
        pipe.send(" ".join(f"{type(error).__name__}: {error}".split())[:200])


def verdict(make):
    """None if it trains, else why not."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=trains, args=(make, there))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else f"takes more than {SECONDS} s"
    except EOFError:
        return "its process ended"
    finally:
        child.kill()
        child.join()


def draw(library, seed):
    """Names and the numbers of their forms."""
    found = forms(library)
    names = sorted(found)
    random.Random(f"{seed} {library}").shuffle(names)
    taken = []
    for name in names:
        for form, make in enumerate(found[name]):
            why = verdict(make)
            print(f"{library}: {name} {form}: {why or 'drawn'}", file=sys.stderr, flush=True)
            if why is None:
                taken.append((name, form))
                break
        if len(taken) == NUMBERS[library]:
            break
    return taken


def preload():
    """What each child would else import for itself."""
    import diffusers.models  # noqa: F401
    import strangers_drawn_small  # noqa: F401
    import torch._dynamo  # noqa: F401
    import torchvision  # noqa: F401
    import transformers.loss.loss_utils
    import transformers.modeling_utils
    import transformers.models.auto.modeling_auto
    import transformers.models.llama.modeling_llama  # noqa: F401


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("only", nargs="*", help="libraries, by default all")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    import memplan.training.optimize  # noqa: F401

    preload()
    found = listed()
    for library in options.only or NUMBERS:
        importlib.import_module(library)
        found[library] = draw(library, options.seed)
        lines = [
            f"# library, model, form of its inputs; drawn by strangers_drawn.py with seed {options.seed}"
        ]
        lines += [f"{each}\t{name}\t{form}" for each in NUMBERS for name, form in found[each]]
        LIST.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
