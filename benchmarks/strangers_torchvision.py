"""torchvision's models, small: by name, functions that return an Iteration. The compiled operators of
torchvision are not needed."""

import torch
from memplan.model.iteration import Iteration
from strangers_torch import square, total
from torch.nn import functional
from torchvision import models

IMAGES = (2, 3, 64, 64)
CLIP = (2, 3, 4, 32, 32)


def classes(module, *shape):
    """A classifier of images or clips; those with auxiliary classifiers return several outputs."""

    def loss(output, labels):
        if isinstance(output, tuple):
            return total(functional.cross_entropy(each, labels) for each in output if each is not None)
        return functional.cross_entropy(output, labels)

    from memplan.model.iteration import Labelled

    images = torch.randn(*(shape or IMAGES))
    return Iteration(module.train(), Labelled((images,), torch.randint(5, (len(images),))), loss)


def named(name, *shape, **options):
    return lambda: classes(models.get_model(name, weights=None, num_classes=5, **options), *shape)


def resnet(block, **options):
    return lambda: classes(models.ResNet(block, [1, 1, 1, 1], num_classes=5, **options))


def vgg():
    from torchvision.models.vgg import VGG, make_layers

    layers = make_layers([8, "M", 16, "M", 32, "M"], batch_norm=True)
    module = VGG(layers, num_classes=5)
    module.classifier[0] = torch.nn.Linear(32 * 49, 32)
    module.classifier[3] = torch.nn.Linear(32, 32)
    module.classifier[6] = torch.nn.Linear(32, 5)
    return classes(module)


def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return classes(
        ConvNeXt(
            [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=5, stochastic_depth_prob=0.2
        )
    )


def vit():
    return classes(models.VisionTransformer(64, 16, 2, 4, 32, 64, num_classes=5))


def swin(version):
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    options = {} if version == 1 else {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    return lambda: classes(
        models.SwinTransformer(
            [4, 4], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.2, num_classes=5, **options
        )
    )


def maxvit():
    return classes(models.MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 8, 0.2, num_classes=5))


def densenet():
    return classes(models.DenseNet(8, (2, 2, 2), 16, num_classes=5))


def segmented(name, **options):
    def build():
        module = models.get_model(name, weights=None, weights_backbone=None, num_classes=5, **options)
        from memplan.model.iteration import Labelled

        def loss(output, labels):
            return total(functional.cross_entropy(each, labels) for each in output.values())

        return Iteration(
            module.train(), Labelled((torch.randn(*IMAGES),), torch.randint(5, (2, 64, 64))), loss
        )

    return build


def mvit():
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    def block(inward, outward, stride):
        return MSBlockConfig(2, inward, outward, [3, 3, 3], [3, 3, 3], [1, stride, stride], [1, 2, 2])

    blocks = [block(16, 16, 1), block(16, 32, 2)]
    return classes(
        MViT(
            (32, 32),
            4,
            blocks,
            residual_pool=True,
            residual_with_cls_embed=False,
            rel_pos_embed=True,
            proj_after_attn=True,
            num_classes=5,
        ),
        *CLIP,
    )


def swin3d():
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    return classes(SwinTransformer3d([2, 4, 4], 16, [2, 2], [2, 4], [2, 4, 4], num_classes=5), *CLIP)


def raft():
    module = models.optical_flow.raft_small(weights=None)
    images = torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)
    return Iteration(module.train(), (*images, 2), lambda flows: total(map(square, flows)))


def detector(name):
    """The images and boxes come as lists; the output is a dict of losses."""

    def build():
        module = models.get_model(name, weights=None, weights_backbone=None, num_classes=5)
        corners = torch.randint(4, 40, (2, 2, 2)).float()
        boxes = [torch.cat([corner, corner + torch.randint(8, 40, (2, 2))], 1) for corner in corners]
        targets = [{"boxes": each, "labels": torch.randint(1, 5, (2,))} for each in boxes]
        images = [torch.rand(3, 96, 96) for _ in range(2)]
        if hasattr(module, "transform"):
            module.transform.min_size, module.transform.max_size = (96,), 96
        return Iteration(module.train(), (images, targets), lambda losses: total(losses.values()))

    return build


TORCHVISION = {
    "alexnet": named("alexnet"),
    "vgg": vgg,
    "resnet": resnet(models.resnet.BasicBlock),
    "resnext": resnet(models.resnet.Bottleneck, groups=4, width_per_group=8),
    "wide resnet": resnet(models.resnet.Bottleneck, width_per_group=128),
    "densenet": densenet,
    "googlenet": named("googlenet", 2, 3, 64, 64, init_weights=False),
    "inception v3": named("inception_v3", 2, 3, 96, 96, init_weights=False, aux_logits=False),
    "squeezenet": named("squeezenet1_1"),
    "mobilenet v2": named("mobilenet_v2"),
    "mobilenet v3": named("mobilenet_v3_small"),
    "shufflenet v2": named("shufflenet_v2_x0_5"),
    "mnasnet": named("mnasnet0_5"),
    "efficientnet": named("efficientnet_b0"),
    "efficientnet v2": named("efficientnet_v2_s"),
    "regnet x": named("regnet_x_400mf"),
    "regnet y": named("regnet_y_400mf"),
    "convnext": convnext,
    "vit": vit,
    "swin": swin(1),
    "swin v2": swin(2),
    "maxvit": maxvit,
    "lraspp": segmented("lraspp_mobilenet_v3_large"),
    "deeplab v3": segmented("deeplabv3_mobilenet_v3_large", aux_loss=True),
    "fcn": segmented("fcn_resnet50"),
    "r3d": named("r3d_18", *CLIP),
    "mc3": named("mc3_18", *CLIP),
    "r2plus1d": named("r2plus1d_18", *CLIP),
    "mvit": mvit,
    "swin3d": swin3d,
    "raft": raft,
    "retinanet": detector("retinanet_resnet50_fpn"),
    "fcos": detector("fcos_resnet50_fpn"),
    "ssdlite": detector("ssdlite320_mobilenet_v3_large"),
}
