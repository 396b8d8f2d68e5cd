import tensorflow as tf


class Autoencoder(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.down, self.up = tf.keras.layers.Dense(2), tf.keras.layers.Dense(6)

    def call(self, x):
        return self.up(self.down(x))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data, training=True) - data))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": loss}


model = Autoencoder()
model.compile(optimizer="sgd")
model.fit(tf.random.normal((64, 6)), batch_size=8, epochs=2)
