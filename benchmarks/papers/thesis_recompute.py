"""Thesis, chapter 2: Rockmate beside Rotor and Checkmate."""

from __future__ import annotations

from figure import Case, Figure, Missing, Plot, Values
from thesis import gpt2, graph_named, overheads

TITLE = "Thesis, chapter 2: Rockmate"


def grids(given: Values, seconds: float) -> Values:
    """Rockmate from a grid of budgets alone."""
    count = str(given["grid"])
    settings = {"rockmate": {"options": "grid", "peaks": count, "saves": count}}
    graph = gpt2("small", int(given["layers"]), "P100", 8, 512)
    return overheads(graph, float(given["budget, %"]), settings, seconds)


def over_layers(given: Values, seconds: float) -> Values:
    graph = gpt2("small", int(given["layers"]), "P100", 8, 512)
    return {"operations": len(graph.operations)} | overheads(
        graph, 50, {"rotor": {}, "rockmate": {}, "checkmate": {}}, seconds
    )


def over_budgets(given: Values, seconds: float) -> Values:
    """A GPT-2 estimated for a GPU, or a graph of instances/public/models."""
    if given["gpu"]:
        graph = gpt2(str(given["model"]), int(given["layers"]), str(given["gpu"]), 4, 1024)
    else:
        graph = graph_named(str(given["model"]))
    return overheads(graph, float(given["budget, %"]), {"rotor": {}, "rockmate": {}}, seconds)


SHARES = (
    "Budgets are shares of what the plain peak has above weights: activations, and gradients where they "
    "stand at the peak, which the thesis subtracts. "
)
GPT = (
    "GPT-2 is made from its configuration, without dropout and without the head over the vocabulary: an "
    "operation takes its FLOP or the bytes that it "
    "touches, whichever is longer, on the GPU's data sheet. "
)
PUBLISHED_LARGE = {"rockmate, %": 5, "rotor, %": "> 10"}
FIGURES = (
    Figure(
        "thesis-2.5",
        "Rockmate's grid of budgets",
        "Figure 2.5, section 2.7.1",
        "plot only. Text: a grid of 6 by 6 is fine enough; the thesis goes on with 10 by 10.",
        SHARES + GPT + "Only a GPT-2 of 2 layers here: 4 by 4 is enough for it.",
        [
            Case({"layers": 2, "grid": grid, "budget, %": budget})
            for grid in (2, 4, 6, 10)
            for budget in (50, 70)
        ],
        grids,
        {"layers": 1, "grid": 1, "budget, %": 80},
        seconds=60,
        plot=Plot("budget, %", ["rockmate, %"], by=["grid"], axis="overhead, %"),
    ),
    Figure(
        "thesis-2.6",
        "GPT-2 of more and more layers at half of the activations",
        "Figure 2.6, section 2.7.2",
        "plot only. Text: Rockmate is about as fast as Checkmate, Rotor slower; Checkmate's solving grows "
        "exponentially, above 30 hours at 10 blocks, Rockmate's hardly.",
        SHARES + GPT + "Each solve has 40 s here, the thesis' none; a Checkmate that took "
        "40 s was stopped, and shows the best that it had. Rockmate seeks better options until its time is "
        "over.",
        [Case({"layers": layers}) for layers in (1, 2, 3, 4, 6, 10)],
        over_layers,
        {"layers": 1},
        seconds=40,
        plot=Plot("layers", ["rotor, %", "rockmate, %", "checkmate, %"], axis="overhead, %"),
    ),
    *(
        Figure(
            f"thesis-{number}",
            f"overhead over the budget, {gpu}",
            f"Figure {number}, section 2.7.3",
            "plot only. Text: on GPT2-large Rockmate saves half of the memory at 5 % overhead, Rotor needs "
            "more than 10 %; on ResNets both are alike, the more so the deeper.",
            SHARES + GPT + "Both are below the published overheads, Rotor is several times Rockmate as there."
            + " That both are alike on ResNets is not reproduced."
            + (" ResNet-50 is a profile of a CPU, so it stands here only." if extra else ""),
            [
                Case(
                    {"model": model, "layers": layers, "gpu": where, "budget, %": budget},
                    PUBLISHED_LARGE if (model, budget) == ("large", 50) else {},
                )
                for model, layers, where in (
                    ("large", 36, gpu), ("resnet50-b32", 50, "") if extra else ("medium", 24, gpu),
                )
                for budget in (40, 50, 60, 75)
            ],
            over_budgets,
            {"model": "small", "layers": 1, "gpu": gpu, "budget, %": 80},
            seconds=20,
            plot=Plot("budget, %", ["rotor, %", "rockmate, %"], by=["model"], axis="overhead, %"),
        )
        for number, gpu, extra in (("2.7", "P100", True), ("2.8", "V100", False))
    ),
)  # fmt: skip
MISSING = (
    Missing(
        "Figures 2.7 and 2.8, other ResNets",
        "the corpus has ResNet-50 alone; `plan profile` makes others",
        True,
    ),
)
