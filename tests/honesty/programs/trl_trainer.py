from datasets import Dataset
from trl import SFTConfig, SFTTrainer

rows = Dataset.from_list([{"text": f"{n} plus {n} is {2 * n}"} for n in range(64)])
SFTTrainer("sshleifer/tiny-gpt2", train_dataset=rows, args=SFTConfig("o", max_steps=3)).train()
