import numpy as np
import tensorflow as tf


def input_fn():
    x = np.random.RandomState(0).rand(64, 4).astype("float32")
    return tf.data.Dataset.from_tensor_slices(({"x": x}, x.sum(1, keepdims=True))).repeat().batch(8, drop_remainder=True)


def model_fn(features, labels, mode):
    out = tf.compat.v1.layers.dense(features["x"], 1)
    loss = tf.reduce_mean(tf.square(out - labels))
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


tf.estimator.Estimator(model_fn, "fit_dir").train(input_fn, steps=6)
