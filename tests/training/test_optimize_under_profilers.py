"""The user's profiler is left alone: a plan that has to be measured meanwhile is refused, in one line."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import memplan
import pytest
import torch
from memplan.torch_support import torch_profilers
from torch import nn, profiler

LINE = "a plan is measured with PyTorch's profiler, of which there is one, and yours is on"


def made(**options):
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    given: dict[str, Any] = {"cache": False, **options}
    return memplan.optimize(
        module,
        torch.randn(32, 16),
        loss_fn=lambda output: output.square().mean(),
        budget="100%",
        time_limit=1,
        **given,
    )


def recording():
    return profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True)


@pytest.mark.scripts
def test_a_batch_of_a_new_shape_is_eager_pytorchs_and_the_profile_is_whole(tmp_path):
    step = made()
    with recording() as profile:
        step(torch.randn(32, 16)).backward()
        with pytest.warns(UserWarning, match=LINE):
            step(torch.randn(24, 16)).backward()
        step(torch.randn(32, 16)).backward()
    assert any("mm" in each.key for each in profile.key_averages())
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    assert (tmp_path / "trace.json").stat().st_size > 0
    step(torch.randn(24, 16)).backward()


@pytest.mark.scripts
def test_a_larger_batch_is_eager_pytorchs_while_the_profiler_is_on():
    """It is planned when the profiler has ended."""
    step, large = made(), torch.randn(40, 16)
    expected = step._executor.iteration.module(large).square().mean()
    with recording():
        with pytest.warns(UserWarning, match=f"{LINE}.*and may take more than the budget"):
            loss = step(large)
        assert torch.equal(loss, expected)
        loss.backward()
    assert len(step.plans) == 1
    with pytest.raises(memplan.InfeasibleError):
        step(large)


def test_optimize_itself_is_refused():
    with recording(), pytest.raises(memplan.MemplanError, match=LINE):
        made()


@pytest.mark.scripts
def test_the_advice_works():
    step = made()
    step(torch.randn(24, 16)).backward()
    with recording() as profile:
        step(torch.randn(24, 16)).backward()
    assert profile.key_averages()


@pytest.mark.scripts
def test_one_that_warms_up_counts_too(tmp_path):
    """In a process of its own: PyTorch crashes where its trace is taken away in the midst of that."""
    script = f"""
import torch
from torch import profiler
import sys
sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
from test_optimize_under_profilers import LINE, made
import memplan
step = made()
schedule = profiler.schedule(wait=0, warmup=1, active=1)
with profiler.profile(activities=[profiler.ProfilerActivity.CPU], schedule=schedule) as profile:
    for rows in (24, 32):
        try:
            step(torch.randn(rows, 16)).backward()
            print(rows)
        except memplan.MemplanError as error:
            print(error)
        profile.step()
profile.export_chrome_trace({str(tmp_path / "trace.json")!r})
step(torch.randn(24, 16)).backward()
print("whole")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["24", "32", "whole"]


@pytest.mark.scripts
def test_whichever_profiler_warms_up_is_seen():
    """Prepared before the first question or after it, by a step or directly; not when it has ended."""
    script = """
from torch.profiler import ProfilerActivity, _KinetoProfile, profile, schedule
from memplan.torch_support.torch_profilers import profiler_is_prepared
cpu = {"activities": [ProfilerActivity.CPU]}
early = _KinetoProfile(**cpu)
early.prepare_trace()
assert profiler_is_prepared()
early.start_trace()
early.stop_trace()
assert not profiler_is_prepared()
first, second = profile(**cpu), profile(**cpu, schedule=schedule(wait=1, warmup=1, active=1))
with first:
    pass
second.start()
assert not profiler_is_prepared()
second.step()
assert profiler_is_prepared()
second.step()
second.step()
assert not profiler_is_prepared()
second.stop()
direct = _KinetoProfile(**cpu)
direct.prepare_trace()
assert profiler_is_prepared()
direct.start_trace()
direct.stop_trace()
assert not profiler_is_prepared()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_to_ask_again_looks_at_no_object_of_the_process(monkeypatch):
    torch_profilers.profiler_is_prepared()
    monkeypatch.setattr(gc, "get_objects", None)
    assert not torch_profilers.profiler_is_prepared()
