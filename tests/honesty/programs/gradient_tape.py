import tensorflow as tf

w = tf.Variable(tf.zeros((3, 1)))
descent = tf.keras.optimizers.SGD(0.1)
for _ in range(10):
    x = tf.random.normal((16, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
    descent.apply_gradients([(tape.gradient(loss, w), w)])
