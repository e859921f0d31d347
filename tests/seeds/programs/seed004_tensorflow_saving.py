"""Seed 004, TensorFlow: saving checkpoints."""

import numpy as np
from ray.air import Checkpoint, ScalingConfig, session
from ray.train.tensorflow import TensorflowTrainer


def train_func(config):
    import tensorflow as tf

    n = 100
    # create a toy dataset
    X = np.random.normal(0, 1, size=(n, 4))
    Y = np.random.uniform(0, 1, size=(n, 1))

    start_epoch = 0
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()

    with strategy.scope():
        # toy neural network : 1-layer
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="linear", input_shape=(4,))])
        model.compile(optimizer="Adam", loss="mean_squared_error", metrics=["mse"])

    for epoch in range(start_epoch, config["num_epochs"]):
        model.fit(X, Y, batch_size=20)
        checkpoint = Checkpoint.from_dict(dict(epoch=epoch, model_weights=model.get_weights()))
        session.report({}, checkpoint=checkpoint)


trainer = TensorflowTrainer(
    train_func,
    train_loop_config={"num_epochs": 5},
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()

print(result.checkpoint.to_dict())
