"""A made-up profile with the shape of VGG-16: sizes by arithmetic, times by one speed."""

from __future__ import annotations

from seqgc.pipeline import Chain, Layer

SPEED, BATCH = 4.5e12, 64  # multiply-adds count twice


def vgg16() -> Chain:
    """Return VGG-16 on images of 224 x 224 pixels; a backward pass costs two forward passes."""
    layers, channels, side = list[Layer](), 3, 224

    def add(name: str, *, products: int, outputs: int, weights: int) -> None:
        forward_s = 2 * BATCH * products / SPEED
        layers.append(Layer(name, forward_s, 2 * forward_s, 4 * BATCH * outputs, 4 * weights))

    for block, (width, convolutions) in enumerate(
        [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], 1
    ):
        for at in range(1, convolutions + 1):
            weights = 9 * channels * width
            products, out_side = weights * side**2, side // 2 if at == convolutions else side
            add(
                f"conv{block}_{at}",
                products=products,
                outputs=width * out_side**2,
                weights=weights + width,
            )
            channels = width
        side //= 2
    inputs = channels * side**2
    for name, width in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
        add(name, products=inputs * width, outputs=width, weights=(inputs + 1) * width)
        inputs = width
    return Chain(tuple(layers))
