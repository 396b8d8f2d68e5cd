"""Trains and evaluates this model: python run.py CPU --mode train --params configs/params.yaml"""

from portwright.tensorflow import run

from data import eval_input_fn, train_input_fn
from model import model_fn
from utils import set_defaults


def main() -> None:
    run(
        model_fn=model_fn,
        train_input_fn=train_input_fn,
        eval_input_fn=eval_input_fn,
        default_params_fn=set_defaults,
    )


if __name__ == "__main__":
    main()
