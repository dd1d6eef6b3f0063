"""Where every weight stands when a turn of an order begins, and whether the order makes sense at all."""

from __future__ import annotations

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled
from .cycle import FROZEN
from .facts import Facts, Turn


@compiled
def begin_turn(facts: Facts, order: Ints, turn: Turn) -> bool:
    """Set `turn` to where everything stands when a turn begins; false where the order breaks a rule."""
    runs, versions = len(facts.seconds), len(facts.changed)
    here, fresh, waiting, chosen = turn.here, turn.fresh, turn.waiting, turn.chosen
    away_in = turn.away_in
    here[:] = True
    fresh[:] = False
    waiting[:] = -1
    chosen[:] = False
    frozen = runs + versions
    for token in order:
        if token >= frozen:
            absence = token - frozen
            if chosen[absence]:
                return False
            chosen[absence] = True
            if facts.version[absence] == FROZEN:
                fresh[facts.weight[absence]] = True
    for attempt in range(2):
        for token in order:
            if token < runs:
                for row in range(facts.first_back[token], facts.first_back[token + 1]):
                    absence = facts.coming[row]
                    w = facts.weight[absence]
                    if attempt and chosen[absence] and (waiting[w] >= 0 or not here[w]):
                        return False
                for row in range(facts.first_new[token], facts.first_new[token + 1]):
                    fresh[facts.changed[facts.new[row]]] = False
                for row in range(facts.first[token], facts.first[token + 1]):
                    absence = facts.leaving[row]
                    w = facts.weight[absence]
                    if chosen[absence]:
                        if fresh[w]:
                            here[w], away_in[w] = False, absence
                        else:
                            waiting[w] = absence
            elif token < frozen:
                w = facts.changed[token - runs]
                if attempt and (fresh[w] or not here[w]):
                    return False
                fresh[w] = True
                if waiting[w] >= 0:
                    here[w], away_in[w], waiting[w] = False, waiting[w], -1
            else:
                w = facts.weight[token - frozen]
                if attempt and (here[w] or not fresh[w] or away_in[w] != token - frozen):
                    return False
                here[w], waiting[w] = True, -1
    return True
