"""Pre-trains a small masked autoencoder with the settings of main_pretrain.py, which needs torch 1.8 (torch._six)."""

import torch
from models_mae import MaskedAutoencoderViT

torch.manual_seed(0)
images = torch.randn(88, 3, 32, 32)
loader = torch.utils.data.DataLoader(images, batch_size=4, shuffle=True)
model = MaskedAutoencoderViT(
    img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2,
    decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2, norm_pix_loss=True,
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
model.train()
for samples in loader:
    loss, _, _ = model(samples, mask_ratio=0.75)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
