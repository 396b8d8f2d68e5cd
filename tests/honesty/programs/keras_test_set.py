import numpy as np
import tensorflow as tf

rng = np.random.default_rng(7)
x_train, x_test = rng.random((160, 12), "float32"), rng.random((40, 12), "float32")
y_train, y_test = (x_train.mean(1) > 0.5).astype("int64"), (x_test.mean(1) > 0.5).astype("int64")
net = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(2, activation="softmax")])
net.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
net.fit(x_train, y_train, epochs=2, batch_size=16, validation_split=0.25)
print(net.evaluate(x_test, y_test))
