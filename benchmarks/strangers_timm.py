"""timm's models: of each file of models the smallest, where that has less than 13 million parameters and
takes small images, and its own test models. By name, functions that return an Iteration."""

from typing import Any

import timm
import torch
from memplan.model.iteration import Iteration, Labelled
from torch.nn import functional

NAMES = {
    "test_byobnet": 96,
    "test_convnext": 96,
    "test_convnext2": 96,
    "test_efficientnet": 96,
    "test_efficientnet_evos": 96,
    "test_efficientnet_gn": 96,
    "test_efficientnet_ln": 96,
    "test_mambaout": 96,
    "test_nfnet": 96,
    "test_resnet": 96,
    "test_vit": 96,
    "test_vit2": 96,
    "test_vit3": 96,
    "test_vit4": 96,
    "starnet_s050": 64,
    "mobilenetv3_small_050": 64,
    "mobileone_s0": 64,
    "coat_tiny": 64,
    "convit_tiny": 64,
    "convnext_atto": 64,
    "cpubone_nano": 64,
    "csatv2": 64,
    "cs3darknet_s": 64,
    "cspnext_tiny": 64,
    "deit_tiny_patch16_224": 64,
    "densenet121": 64,
    "edgenext_x_small": 64,
    "efficientformerv2_s0": 64,
    "efficientvim_m1": 64,
    "efficientvit_b0": 64,
    "efficientvit_m0": 64,
    "eva02_tiny_patch14_224": 64,
    "fasternet_t0": 64,
    "fastvit_s12": 64,
    "ghostnet_100": 64,
    "hardcorenas_b": 64,
    "hrnet_w18_small": 64,
    "iformer_s": 64,
    "inception_next_atto": 64,
    "lcnetv2_small": 64,
    "mambaout_femto": 64,
    "maxvit_pico_rw_256": 64,
    "mobilevit_xxs": 64,
    "nf_regnet_b0": 64,
    "pit_xs_224": 64,
    "pvt_v2_b0": 64,
    "repghostnet_100": 64,
    "repvit_m1": 64,
    "resnet18": 64,
    "resnetv2_18": 64,
    "rexnet_100": 64,
    "legacy_seresnet18": 64,
    "shvit_s1": 64,
    "skresnet18": 64,
    "swiftformer_xs": 64,
    "tiny_vit_5m_224": 64,
    "visformer_tiny": 64,
    "vit_tiny_r_s16_p8_224": 64,
    "ese_vovnet19b_slim": 64,
    "xcit_nano_12_p8_224": 64,
    "vit_tiny_patch16_224": 64,
    "efficientnet_lite0": 64,
}
"""The pixels of an image's side."""


def classifier(name, size):
    def build():
        try:
            module = timm.create_model(name, num_classes=5, img_size=size)
        except TypeError:  # it takes images of any size
            module = timm.create_model(name, num_classes=5)
        images = torch.randn(2, 3, size, size)
        return Iteration(module.train(), Labelled((images,), torch.randint(5, (2,))), loss)

    return build


def loss(output, labels) -> Any:
    """Distilled models have several heads in training."""
    heads = output if isinstance(output, tuple | list) else (output,)
    return sum(functional.cross_entropy(head, labels) for head in heads)


TIMM = {name: classifier(name, size) for name, size in NAMES.items()}
