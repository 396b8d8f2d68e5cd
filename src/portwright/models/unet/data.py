"""Images with a mask each: your own files, or generated textures with a defect to be found."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from portwright import UserError
from portwright.images.dataset import Generated, ImageFormat, open_images
from portwright.images.decoding import MaskFormat
from portwright.images.textures import make_textures


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], name: str) -> DataLoader[Any]:
    options = params[name]
    return DataLoader(
        make_dataset(params, name),
        batch_size=options["batch_size"],
        shuffle=options["shuffle"],
        drop_last=options["drop_last"],
        num_workers=options["num_workers"],
    )


def make_dataset(params: dict[str, Any], name: str) -> Any:
    """Batches of {image [batch, channels, height, width], mask [batch, height, width]}."""
    options, model, training = params[name], params["model"], name == "train_input"
    shape = options["image_shape"]
    if shape[2] != model["input_channels"]:
        raise UserError(
            f"{name}.image_shape is {shape} and model.input_channels {model['input_channels']}.",
            f"image_shape is height, width, channels: set model.input_channels to {shape[2]}, or the last of image_shape to {model['input_channels']}.",
        )
    if options["data_dir"] is None:
        if not training and params["train_input"]["data_dir"] is not None:
            raise UserError(
                "eval_input has no data_dir, and train_input has one.", "Name the folder for evaluation too."
            )
        made = make_textures(
            options["num_samples"], shape, model["num_classes"], params["runconfig"]["seed"] + (not training)
        )
        generated = ImageFormat(shape, normalize="none", flips=training and options["augment_data"])
        return Generated(made["image"], made["mask"][..., 0], generated)
    images = ImageFormat(
        shape,
        fit=options["fit"],
        normalize=options["normalize_data_method"],
        flips=training and options["augment_data"],
        crops_anywhere=training,
    )
    masks = MaskFormat(
        model["num_classes"], options["mask_threshold"], options["mask_palette"], model["ignore_index"]
    )
    return open_images(
        options["data_dir"], images, masks, options["missing_masks"], options["cache_megabytes"] << 20
    )
