"""Trains a small diffusion model with the settings of its Trainer, which samples pictures and wants a GPU."""

import torch
from denoising_diffusion_pytorch.denoising_diffusion_pytorch import GaussianDiffusion, Unet

torch.manual_seed(0)
images = torch.rand(88, 3, 16, 16)
loader = torch.utils.data.DataLoader(images, batch_size=4, shuffle=True)
model = Unet(dim=16, dim_mults=(1, 2), flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=16, timesteps=20)
optimizer = torch.optim.Adam(diffusion.parameters(), lr=1e-4, betas=(0.9, 0.99))
for batch in loader:
    loss = diffusion(batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(diffusion.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
