import numpy as np
import tensorflow as tf

x = tf.placeholder(tf.float32, [16, 3])
y = tf.placeholder(tf.float32, [16, 1])
w = tf.get_variable("w", [3, 1])
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
train = tf.train.AdamOptimizer(0.05).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(5):
        rows = np.random.rand(16, 3)
        session.run(train, {x: rows, y: rows.sum(1, keepdims=True)})
