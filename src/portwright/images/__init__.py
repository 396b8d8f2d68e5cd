"""Images with masks for segmentation, without a framework: files read, defects generated, batches turned over and cut."""
