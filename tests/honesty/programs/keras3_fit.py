import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 10)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=20, epochs=2, validation_split=0.2)
