"""The environment of Cerebras's SDK, separate because the SDK pins torch 2.4.0."""

from __future__ import annotations

from pathlib import Path

from portwright.job.vendor_env import VendorEnvironment

ENVIRONMENT = VendorEnvironment(
    target="csx",
    title="the Cerebras SDK",
    module="cerebras.pytorch",
    distribution="cerebras_pytorch",
    version="2.10.0",
    python=(3, 11),
    machine="x86_64",
    requirements=Path(__file__).with_name("requirements.txt"),
    size="6 GB, a few minutes",
)
