import numpy as np
import tensorflow as tf

net = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
net.compile(optimizer="sgd", loss="mse")
worker = tf.keras.estimator.model_to_estimator(keras_model=net, model_dir="k_dir")
rows = np.ones((32, 3), "float32")
worker.train(lambda: tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat().batch(8), steps=4)
