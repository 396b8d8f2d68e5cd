import transformers as hf
from torch import nn


class Weighted(hf.Seq2SeqTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, **rest):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


def build():
    return Weighted(model=hf.AutoModelForSeq2SeqLM.from_pretrained("local"), args=hf.Seq2SeqTrainingArguments("o"))
