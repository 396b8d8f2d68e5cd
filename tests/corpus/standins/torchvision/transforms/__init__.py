"""Transforms of PIL images; the random ones draw from torch's generator, as the real ones do."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageOps


class InterpolationMode:
    BILINEAR, BICUBIC, NEAREST = Image.BILINEAR, Image.BICUBIC, Image.NEAREST


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image):
        array = np.array(image)
        array = array[:, :, None] if array.ndim == 2 else array
        return torch.from_numpy(array.transpose(2, 0, 1).copy()).float().div(255)


class Normalize:
    def __init__(self, mean, std, inplace=False):
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image):
        return (image - self.mean) / self.std


class Resize:
    def __init__(self, size, interpolation=Image.BILINEAR, **_):
        self.size, self.interpolation = size, interpolation

    def __call__(self, image):
        if isinstance(self.size, int):
            width, height = image.size
            scale = self.size / min(width, height)
            return image.resize((round(width * scale), round(height * scale)), self.interpolation)
        return image.resize(tuple(self.size)[::-1], self.interpolation)


class CenterCrop:
    def __init__(self, size):
        self.size = (size, size) if isinstance(size, int) else size

    def __call__(self, image):
        (width, height), (rows, columns) = image.size, self.size
        left, top = (width - columns) // 2, (height - rows) // 2
        return image.crop((left, top, left + columns, top + rows))


class Pad:
    def __init__(self, padding, **_):
        self.padding = padding

    def __call__(self, image):
        return ImageOps.expand(image, self.padding)


class RandomCrop:
    def __init__(self, size, padding=0, **_):
        self.size, self.padding = size, padding or 0

    def __call__(self, image):
        image = ImageOps.expand(image, self.padding)
        left = int(torch.randint(0, image.size[0] - self.size + 1, (1,)))
        top = int(torch.randint(0, image.size[1] - self.size + 1, (1,)))
        return image.crop((left, top, left + self.size, top + self.size))


class RandomResizedCrop(RandomCrop):
    def __init__(self, size, *_, **__):
        super().__init__(size)

    def __call__(self, image):
        return super().__call__(image.resize((self.size + 8, self.size + 8)))


class RandomHorizontalFlip:
    def __call__(self, image):
        return ImageOps.mirror(image) if float(torch.rand(1)) < 0.5 else image


class RandomRotation:
    def __init__(self, degrees, **_):
        self.degrees = degrees

    def __call__(self, image):
        return image.rotate(float(torch.rand(1) * 2 - 1) * self.degrees)


class Lambda:
    def __init__(self, function):
        self.function = function

    def __call__(self, image):
        return self.function(image)
