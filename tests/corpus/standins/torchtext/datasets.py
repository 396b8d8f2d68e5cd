from torchtext.data import Dataset


class TranslationDataset(Dataset):
    pass
