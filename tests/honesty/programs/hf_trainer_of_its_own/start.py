from building import build

if __name__ == "__main__":
    build().train()
