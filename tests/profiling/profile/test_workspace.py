"""What kernels take beside their outputs: by hand, and in an estimated graph."""

from __future__ import annotations

import torch
from memplan.graphs.machines.gpus import find_gpu
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import ModelFile
from memplan.profiling.profile.estimate import estimate_file
from memplan.profiling.profile.estimates import Estimates
from memplan.profiling.profile.workspace import Workspace, constant_bytes, workspace_of
from torch import nn

aten = torch.ops.aten


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_convolution_copies_to_the_other_layout_or_unrolls_its_patches():
    x, weight, y = meta(2, 3, 8, 8), meta(4, 3, 3, 3), meta(2, 4, 8, 8)
    args = (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    usual = 4 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 64)
    patches = 4 * 2 * 64 * 27
    assert workspace_of(aten.convolution.default, args, {}, y) == Workspace(usual, patches)
    last = x.to(memory_format=torch.channels_last)
    assert workspace_of(aten.convolution.default, (last, *args[1:]), {}, y).usual == 0
    backward = (y, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    assert workspace_of(aten.convolution_backward.default, backward, {}, (x, weight)).most == patches


def test_attention_sums_the_gradient_of_queries_in_float32():
    """In rows and columns padded to 128 and 32, and one number a row."""
    sums = 4 * 2 * 4 * 128 * (32 + 1)
    query, key = meta(2, 4, 16, 8, dtype=torch.bfloat16), meta(2, 4, 16, 8, dtype=torch.bfloat16)
    target = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert workspace_of(target, (query, query, key, key), {}, ()) == Workspace(sums, sums)
    shared = meta(2, 1, 16, 8, dtype=torch.bfloat16)
    assert workspace_of(target, (query, query, shared, shared), {}, ()).usual == sums + 2 * 2048


def test_softmax_multiplies_output_and_gradient_before_its_backward():
    """In the gradient's dtype, also where the input was of half precision."""
    grad, target = meta(2, 3, 16), aten._softmax_backward_data.default
    assert workspace_of(target, (grad, grad, -1, torch.float16), {}, ()) == Workspace(384, 384)
    log = aten._log_softmax_backward_data.default
    assert workspace_of(log, (grad, grad, -1, torch.float16), {}, ()) == Workspace()


def test_the_gradient_of_a_table_sorts_rows_only_where_there_are_many():
    few, many = meta(3072, dtype=torch.int64), meta(3073, dtype=torch.int64)
    target = aten.embedding_dense_backward.default
    assert workspace_of(target, (meta(3072, 8), few, 10, -1, False), {}, meta(10, 8)).usual == 0
    assert workspace_of(target, (meta(3073, 8), many, 10, -1, False), {}, meta(10, 8)).usual == 32 * 3073


def test_a_product_takes_nothing_but_what_cublas_keeps():
    assert workspace_of(aten.mm.default, (meta(8, 8), meta(8, 8)), {}, meta(8, 8)) == Workspace()
    assert constant_bytes(find_gpu("rtx3060")) == 8_519_680  # as measured, docs/formats.md
    assert constant_bytes(find_gpu("h100")) == 32 * 2**20


def test_an_estimated_graph_has_workspaces():
    def build(batch=2):
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        return layers, (torch.ones(batch, 3, 16, 16),), torch.sum

    file, preset = ModelFile("m.py", "build", build), find_preset("a100")
    graph = estimate_file(file, preset, batch=2)
    assert (graph.operations.workspace > 0).sum() == 4
    assert graph.source["constant"] == 8_519_680
    estimates = Estimates(file, None, lambda _line: None)
    estimates.graph(2, preset)
    worst = estimates.at_worst(2, preset)
    assert (worst.operations.workspace >= graph.operations.workspace).all()
    assert worst.operations.workspace.sum() > graph.operations.workspace.sum()


def test_attention_in_float32_multiplies_output_and_gradient():
    """Values may be wider than queries: the size of the gradient counts. Half precision sums instead."""
    target = aten._scaled_dot_product_efficient_attention_backward.default
    for dtype, wanted in ((torch.float32, 4 * 2 * 4 * 16 * 12), (torch.bfloat16, 4 * 2 * 4 * 128 * 33)):
        grad, query = meta(2, 4, 16, 12, dtype=dtype), meta(2, 4, 16, 8, dtype=dtype)
        found = workspace_of(target, (grad, query, query, grad), {}, ())
        assert found == Workspace(wanted, wanted)


def test_wide_heads_and_long_rows_are_padded_to_larger_tiles():
    target = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    for length, width, rows, columns in ((128, 128, 128, 128), (129, 129, 256, 192), (1, 192, 128, 192)):
        query = meta(3, 2, length, width, dtype=torch.bfloat16)
        wanted = 4 * 3 * 2 * rows * (columns + 1)
        assert workspace_of(target, (query, query, query, query), {}, ()).usual == wanted


def test_sorts_have_keys_and_positions_once_more():
    x = meta(3, 5, dtype=torch.float16)
    for operation in (aten.sort.default, aten.topk.default, aten.argsort.default):
        assert workspace_of(operation, (x, 1), {}, ()) == Workspace(15 * (2 + 8), 15 * (2 + 8))


def test_only_what_adds_up_sorts_its_indices():
    target, x, index = aten.index_put.default, meta(8, 4), meta(6, 1, dtype=torch.int64)
    few = meta(2, dtype=torch.int64)
    args = (x, [few, None, index], meta(6, 4))
    for more, keywords, rows in (
        ((), {}, 0),
        ((False,), {}, 0),
        ((True,), {}, 6),
        ((), {"accumulate": True}, 6),
    ):
        assert workspace_of(target, (*args, *more), keywords, x) == Workspace(32 * rows, 32 * rows)


def test_a_transposed_convolution_unrolls_what_it_reads():
    x, weight, y = meta(2, 4, 8, 8), meta(4, 3, 2, 2), meta(2, 3, 16, 16)
    args = (x, weight, None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    patches = 4 * (2 * 64) * (3 * 4)
    usual = 4 * (x.numel() + weight.numel() + y.numel())
    assert workspace_of(aten.convolution.default, args, {}, y) == Workspace(usual, max(usual, patches))
    backward = (y, x, weight, None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1, [True, True, False])
    assert workspace_of(aten.convolution_backward.default, backward, {}, ()) == Workspace(
        usual, max(usual, patches)
    )
