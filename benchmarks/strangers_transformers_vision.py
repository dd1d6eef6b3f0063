"""Small models of transformers for images and videos: by name, functions that return an Iteration."""

import torch
from memplan.model.iteration import Iteration
from strangers_tiny import IMAGE, configured, made_by

STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "image_size": 32}
SWIN = {
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "image_size": 32,
    "patch_size": 4,
}
PICTURES = (
    "bit convnextv2 cvt deit efficientnet focalnet hiera levit mobilenet_v1 mobilenet_v2 mobilevit "
    "poolformer pvt regnet siglip swiftformer swinv2 vit_msn"
)
PIECES = {
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_groups": 4},
    "convnextv2": STAGES,
    "cvt": {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
    "deit": {**IMAGE, "architectures": ["DeiTForImageClassification"]},
    "efficientnet": {
        "image_size": 32,
        "width_coefficient": 0.25,
        "depth_coefficient": 0.25,
        "hidden_dim": 320,
    },
    "focalnet": {
        "image_size": 32,
        "embed_dim": 16,
        "depths": [1, 1],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
    },
    "hiera": {
        "image_size": [32, 32],
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "masked_unit_size": [4, 4],
        "query_stride": [2, 2],
        "num_query_pool": 1,
    },
    "levit": {
        "architectures": ["LevitForImageClassification"],
        "image_size": 64,
        "hidden_sizes": [16, 32, 48],
        "num_attention_heads": [1, 2, 3],
        "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
    },
    "mobilenet_v1": {"image_size": 32, "depth_multiplier": 0.25, "min_depth": 8},
    "mobilenet_v2": {"image_size": 32, "depth_multiplier": 0.25},
    "mobilevit": {
        "image_size": 32,
        "hidden_sizes": [12, 16, 20],
        "neck_hidden_sizes": [8, 8, 16, 16, 16, 20, 32],
    },
    "poolformer": {**STAGES, "image_size": 64},
    "pvt": {
        "image_size": 64,
        "hidden_sizes": [8, 16, 16, 32],
        "num_attention_heads": [1, 2, 2, 4],
        "depths": [1, 1, 1, 1],
    },
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4},
    "siglip": {"vision_config": IMAGE},
    "swiftformer": {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32]},
    "swinv2": SWIN,
}
SIDES = {"levit": 64, "poolformer": 64, "pvt": 64, "swiftformer": 64}


def picture(kind, options, **others):
    module = configured("AutoModelForImageClassification", kind, options, num_labels=5, **others)
    return Iteration(module, {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(5, (4,))})


def segformer():
    module = configured(
        "AutoModelForSemanticSegmentation",
        "segformer",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 1, 2, 2]},
        decoder_hidden_size=16,
        num_labels=5,
    )
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(5, (2, 64, 64))
    return Iteration(module, {"pixel_values": images, "labels": labels})


def picture_of(kind):
    module = configured("AutoModelForImageClassification", kind, PIECES.get(kind, IMAGE), num_labels=5)
    side = SIDES.get(kind, 32)
    return Iteration(
        module, {"pixel_values": torch.randn(4, 3, side, side), "labels": torch.randint(5, (4,))}
    )


def video():
    module = configured(
        "AutoModelForVideoClassification", "videomae", IMAGE, num_frames=4, tubelet_size=2, num_labels=5
    )
    return Iteration(module, {"pixel_values": torch.randn(2, 4, 3, 32, 32), "labels": torch.randint(5, (2,))})


def masked_picture():
    module = configured(
        "AutoModelForPreTraining",
        "vit_mae",
        IMAGE,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    )
    return Iteration(module, {"pixel_values": torch.randn(4, 3, 32, 32)})


def detr():
    module = configured(
        "AutoModelForObjectDetection",
        "yolos",
        {**IMAGE, "image_size": [32, 32]},
        num_labels=5,
        num_detection_tokens=4,
    )
    labels = [{"class_labels": torch.randint(2, (1,)), "boxes": torch.rand(1, 4) / 4 + 0.2} for _ in range(2)]
    return Iteration(module, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": labels})


VISION = {
    **made_by(picture_of, PICTURES),
    "vit": lambda: picture("vit", IMAGE),
    "beit": lambda: picture("beit", IMAGE),
    "swin": lambda: picture("swin", SWIN),
    "convnext": lambda: picture("convnext", STAGES),
    "resnet-hf": lambda: picture("resnet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
    "dinov2": lambda: picture("dinov2", IMAGE),
    "segformer": segformer,
    "videomae": video,
    "vit_mae": masked_picture,
    "yolos": detr,
}
