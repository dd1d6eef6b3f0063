"""Self-supervised training under DistributedDataParallel as its repositories write it, small.

Sources: facebookresearch/dino (main_dino.py, utils.py), lucidrains/byol-pytorch, facebookresearch/swav
(main_swav.py), facebookresearch/moco (moco/builder.py).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional

WIDE, OUT, ROWS = 12, 10, 4


def backbone() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE))


def crops(rank: int, step: int, sizes: tuple[int, ...] = (4, 4, 4)) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randn(ROWS, 3, size, size, generator=drawn) for size in sizes]


# ── DINO ────────────────────────────────────────────────────────────────────────────────────────────


class DINOHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, 6))
        self.last_layer: Any = nn.utils.weight_norm(nn.Linear(6, OUT, bias=False))
        self.last_layer.weight_g.data.fill_(1)
        self.last_layer.weight_g.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.mlp(x)
        x = nn.functional.normalize(x, dim=-1, p=2)
        return self.last_layer(x)


class MultiCropWrapper(nn.Module):
    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Any) -> Tensor:
        if not isinstance(x, list):
            x = [x]
        idx_crops = torch.cumsum(
            torch.unique_consecutive(torch.tensor([inp.shape[-1] for inp in x]), return_counts=True)[1], 0
        )
        start_idx, output = 0, torch.empty(0).to(x[0].device)
        for end_idx in idx_crops:
            _out = self.backbone(torch.cat(x[start_idx:end_idx]))
            output = torch.cat((output, _out))
            start_idx = end_idx
        return self.head(output)


class DINOLoss(nn.Module):
    center: Tensor

    def __init__(self, ncrops: int = 3) -> None:
        super().__init__()
        self.student_temp, self.center_momentum, self.ncrops = 0.1, 0.9, ncrops
        self.register_buffer("center", torch.zeros(1, OUT))
        self.teacher_temp_schedule = [0.04, 0.05, 0.06, 0.07]

    def forward(self, student_output: Tensor, teacher_output: Tensor, epoch: int) -> Tensor:
        total_loss = self.loss(student_output, teacher_output, epoch)
        self.update_center(teacher_output)
        return total_loss

    def loss(self, student_output: Tensor, teacher_output: Tensor, epoch: int) -> Tensor:
        student_out = student_output / self.student_temp
        student_out = student_out.chunk(self.ncrops)
        temp = self.teacher_temp_schedule[epoch]
        teacher_out = functional.softmax((teacher_output - self.center) / temp, dim=-1)
        teacher_out = teacher_out.detach().chunk(2)
        total_loss: Any = 0
        n_loss_terms = 0
        for iq, q in enumerate(teacher_out):
            for v in range(len(student_out)):
                if v == iq:
                    continue
                loss = torch.sum(-q * functional.log_softmax(student_out[v], dim=-1), dim=-1)
                total_loss += loss.mean()
                n_loss_terms += 1
        total_loss /= n_loss_terms
        return total_loss

    @torch.no_grad()
    def update_center(self, teacher_output: Tensor) -> None:
        batch_center = torch.sum(teacher_output, dim=0, keepdim=True)
        dist.all_reduce(batch_center)
        batch_center = batch_center / (len(teacher_output) * dist.get_world_size())
        self.center = self.center * self.center_momentum + batch_center * (1 - self.center_momentum)


class DINO(nn.Module):
    """Student, teacher and loss in one module. alone: whether forward leaves the centre to the loop."""

    def __init__(self, *, alone: bool = False) -> None:
        super().__init__()
        self.student = MultiCropWrapper(backbone(), DINOHead())
        self.teacher = MultiCropWrapper(backbone(), DINOHead())
        self.loss, self.alone = DINOLoss(), alone
        self.teacher.load_state_dict(self.student.state_dict())
        for p in self.teacher.parameters():
            p.requires_grad = False

    def forward(self, images: list[Tensor]) -> Any:
        with torch.no_grad():
            teacher_output = self.teacher(images[:2])
        student_output = self.student(images)
        if not self.alone:
            return self.loss(student_output, teacher_output, 0)
        loss = self.loss.loss(student_output, teacher_output, 0)
        return {"loss": loss, "teacher_output": teacher_output}

    def update_teacher(self) -> None:
        with torch.no_grad():
            for q, k in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                k.data.mul_(0.99).add_(0.01 * q.detach().data)


# ── SwAV ────────────────────────────────────────────────────────────────────────────────────────────


class SwavModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = backbone()
        self.projection_head = nn.Sequential(
            nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(inplace=True), nn.Linear(WIDE, 6)
        )
        self.prototypes = nn.Linear(6, OUT, bias=False)

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.backbone(each) for each in inputs])
        x = nn.functional.normalize(self.projection_head(x), dim=1, p=2)
        return x, self.prototypes(x)


@torch.no_grad()
def distributed_sinkhorn(out: Tensor) -> Tensor:
    q = torch.exp(out / 0.05).t()
    samples, prototypes = q.shape[1] * dist.get_world_size(), q.shape[0]
    sum_q = torch.sum(q)
    dist.all_reduce(sum_q)
    q /= sum_q
    for _it in range(3):
        sum_of_rows = torch.sum(q, dim=1, keepdim=True)
        dist.all_reduce(sum_of_rows)
        q /= sum_of_rows
        q /= prototypes
        q /= torch.sum(q, dim=0, keepdim=True)
        q /= samples
    q *= samples
    return q.t()


def swav_loss(model: Any, embedding: Tensor, output: Tensor, queue: Tensor | None, bs: int) -> Any:
    """Return the loss. model: the module inside a DistributedDataParallel. bs: images of a crop."""
    embedding, number = embedding.detach(), len(output) // bs
    loss: Any = 0
    for i, crop_id in enumerate((0, 1)):
        with torch.no_grad():
            out = output[bs * crop_id : bs * (crop_id + 1)].detach()
            if queue is not None:
                if not torch.all(queue[i, -1, :] == 0):
                    out = torch.cat((torch.mm(queue[i], model.prototypes.weight.t()), out))
                queue[i, bs:] = queue[i, :-bs].clone()
                queue[i, :bs] = embedding[crop_id * bs : (crop_id + 1) * bs]
            q = distributed_sinkhorn(out)[-bs:]
        subloss: Any = 0
        for v in [each for each in range(number) if each != crop_id]:
            x = output[bs * v : bs * (v + 1)] / 0.1
            subloss -= torch.mean(torch.sum(q * functional.log_softmax(x, dim=1), dim=1))
        loss += subloss / (number - 1)
    return loss / 2


class SwavWhole(nn.Module):
    """Network and loss in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SwavModel()

    def forward(self, images: list[Tensor]) -> Any:
        embedding, output = self.model(images)
        return swav_loss(self.model, embedding, output, None, len(images[0]))


# ── BYOL ────────────────────────────────────────────────────────────────────────────────────────────


def mlp(dim: int, out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(dim, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(inplace=True), nn.Linear(WIDE, out)
    )


class NetWrapper(nn.Module):
    def __init__(self, net: nn.Module, layer: int = -2) -> None:
        super().__init__()
        self.net, self.layer = net, layer
        self.projector: Any = None
        self.hidden: dict[Any, Tensor] = {}
        self.hook_registered = False

    def _hook(self, _: Any, input: Any, output: Tensor) -> None:
        self.hidden[input[0].device] = output.reshape(output.shape[0], -1)

    def get_representation(self, x: Tensor) -> Tensor:
        if not self.hook_registered:
            [*self.net.children()][self.layer].register_forward_hook(self._hook)
            self.hook_registered = True
        self.hidden.clear()
        _ = self.net(x)
        hidden = self.hidden[x.device]
        self.hidden.clear()
        return hidden

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        representation = self.get_representation(x)
        if self.projector is None:
            self.projector = mlp(representation.shape[1], 6).to(representation)
        return self.projector(representation), representation


def byol_loss(x: Tensor, y: Tensor) -> Tensor:
    x, y = functional.normalize(x, dim=-1, p=2), functional.normalize(y, dim=-1, p=2)
    return 2 - 2 * (x * y).sum(dim=-1)


class BYOL(nn.Module):
    """in_forward: whether forward moves the target encoder, as momentum encoders of MoCo's kind."""

    def __init__(self, *, in_forward: bool = False) -> None:
        super().__init__()
        self.in_forward = in_forward
        self.online_encoder = NetWrapper(backbone())
        self.online_predictor = mlp(6, 6)
        self.target_encoder: Any = None
        self.forward(torch.randn(2, 3, 4, 4))  # to make what is lazy

    def _get_target_encoder(self) -> nn.Module:
        if self.target_encoder is None:
            self.target_encoder = copy.deepcopy(self.online_encoder)
            for p in self.target_encoder.parameters():
                p.requires_grad = False
        return self.target_encoder

    def update_moving_average(self) -> None:
        with torch.no_grad():
            pairs = zip(self.online_encoder.parameters(), self.target_encoder.parameters(), strict=True)
            for current_params, ma_params in pairs:
                ma_params.data = ma_params.data * 0.99 + 0.01 * current_params.data

    @torch.no_grad()
    def _momentum_update(self) -> None:
        pairs = zip(self.online_encoder.parameters(), self.target_encoder.parameters(), strict=True)
        for current_params, ma_params in pairs:
            ma_params.mul_(0.99).add_(current_params, alpha=0.01)

    def forward(self, image_one: Tensor, image_two: Tensor | None = None) -> Tensor:
        images = torch.cat((image_one, image_one if image_two is None else image_two), dim=0)
        online_projections, _ = self.online_encoder(images)
        online_pred_one, online_pred_two = self.online_predictor(online_projections).chunk(2, dim=0)
        with torch.no_grad():
            target_encoder = self._get_target_encoder()
            if self.in_forward:
                self._momentum_update()
            target_projections, _ = target_encoder(images)
            target_proj_one, target_proj_two = target_projections.detach().chunk(2, dim=0)
        loss_one = byol_loss(online_pred_one, target_proj_two.detach())
        loss_two = byol_loss(online_pred_two, target_proj_one.detach())
        return (loss_one + loss_two).mean()


# ── MoCo ────────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def concat_all_gather(tensor: Tensor) -> Tensor:
    tensors_gather = [torch.ones_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(tensors_gather, tensor, async_op=False)
    return torch.cat(tensors_gather, dim=0)


class MoCo(nn.Module):
    queue: Tensor
    queue_ptr: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = mlp_of_images(), mlp_of_images()
        self.encoder_k.load_state_dict(self.encoder_q.state_dict())
        for param_k in self.encoder_k.parameters():
            param_k.requires_grad = False
        self.register_buffer("queue", nn.functional.normalize(torch.randn(6, 16), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self) -> None:
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data = param_k.data * 0.99 + param_q.data * (1.0 - 0.99)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys: Tensor) -> None:
        keys = concat_all_gather(keys)
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
        self.queue_ptr[0] = (ptr + keys.shape[0]) % self.queue.shape[1]

    @torch.no_grad()
    def _batch_shuffle_ddp(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x_gather = concat_all_gather(x)
        num_gpus = x_gather.shape[0] // x.shape[0]
        idx_shuffle = torch.randperm(x_gather.shape[0])
        dist.broadcast(idx_shuffle, src=0)
        idx_unshuffle = torch.argsort(idx_shuffle)
        return x_gather[idx_shuffle.view(num_gpus, -1)[dist.get_rank()]], idx_unshuffle

    @torch.no_grad()
    def _batch_unshuffle_ddp(self, x: Tensor, idx_unshuffle: Tensor) -> Tensor:
        x_gather = concat_all_gather(x)
        num_gpus = x_gather.shape[0] // x.shape[0]
        return x_gather[idx_unshuffle.view(num_gpus, -1)[dist.get_rank()]]

    def keys(self, im_k: Tensor) -> Tensor:
        with torch.no_grad():
            self._momentum_update_key_encoder()
            im_k, idx_unshuffle = self._batch_shuffle_ddp(im_k)
            k = nn.functional.normalize(self.encoder_k(im_k), dim=1)
            return self._batch_unshuffle_ddp(k, idx_unshuffle)

    def logits(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = nn.functional.normalize(q, dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / 0.07
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels

    def forward(self, im_q: Tensor, im_k: Tensor) -> tuple[Tensor, Tensor]:
        q = self.encoder_q(im_q)
        return self.logits(q, self.keys(im_k))


def mlp_of_images() -> nn.Module:
    return nn.Sequential(nn.Flatten(), mlp(3 * 16, 6))
