import argparse


def parse_app_args(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--pef")
    return parser.parse_args(argv)
