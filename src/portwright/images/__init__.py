"""Images with masks for segmentation, and handwritten digits, without a framework: files read, defects generated, batches turned over and cut."""
