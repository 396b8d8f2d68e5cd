"""Datasets by their usual names, with generated pictures: blobs whose place depends on the class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class _Generated(Dataset):
    size, channels, num_classes, num_train, num_test = 32, 3, 10, 1200, 64

    def __init__(self, root="", train=True, transform=None, target_transform=None, download=False, **_):
        number = self.num_train if train else self.num_test
        rng = np.random.RandomState(1 if train else 2)
        self.targets = rng.randint(0, self.num_classes, number).tolist()
        shape = (number, self.size, self.size) + ((3,) if self.channels == 3 else ())
        self.data = rng.randint(0, 64, shape).astype(np.uint8)
        for image, target in zip(self.data, self.targets, strict=True):
            top, left = divmod(target * 7 % 64, 8)
            image[2 * top : 2 * top + 8, 2 * left : 2 * left + 8] += 128
        self.classes = [str(number) for number in range(self.num_classes)]
        self.transform, self.target_transform = transform, target_transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image, target = Image.fromarray(np.asarray(self.data[index])), int(self.targets[index])
        return (
            self.transform(image) if self.transform else image,
            self.target_transform(target) if self.target_transform else target,
        )


class MNIST(_Generated):
    size, channels, num_test = 28, 1, 640

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.data, self.targets = torch.from_numpy(self.data), torch.tensor(self.targets)


class FakeData(Dataset):
    """Noise by the number of the sample; of a long set only the first samples are there."""

    def __init__(self, size=1000, image_size=(3, 224, 224), num_classes=10, transform=None, **_):
        self.size, self.image_size, self.num_classes = min(size, 256), image_size, num_classes
        self.transform = transform

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        rng = np.random.RandomState(index)
        channels, height, width = self.image_size
        image = Image.fromarray(rng.randint(0, 256, (height, width, channels)).astype(np.uint8))
        return (self.transform(image) if self.transform else image), int(rng.randint(self.num_classes))


class FashionMNIST(MNIST):
    pass


class CIFAR10(_Generated):
    pass


class CIFAR100(_Generated):
    num_classes = 100


class ImageFolder(Dataset):
    def __init__(self, root, transform=None, **_):
        self.classes = sorted(path.name for path in Path(root).iterdir() if path.is_dir())
        self.imgs = [
            (str(path), number)
            for number, name in enumerate(self.classes)
            for path in sorted((Path(root) / name).iterdir())
        ]
        self.transform = transform

    @staticmethod
    def loader(path):
        return Image.open(path).convert("RGB")

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, index):
        path, target = self.imgs[index]
        image = self.loader(path)
        return (self.transform(image) if self.transform else image), target
