"""Trains and evaluates this model: python run.py CPU --mode train --params configs/params.yaml"""

from portwright import run

from data import get_eval_dataloader, get_train_dataloader
from model import BertSummarizationModel
from utils import set_defaults


def main() -> None:
    run(
        model_fn=BertSummarizationModel,
        train_data_fn=get_train_dataloader,
        eval_data_fn=get_eval_dataloader,
        default_params_fn=set_defaults,
    )


if __name__ == "__main__":
    main()
