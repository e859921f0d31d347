"""Seed 004, TensorFlow: porting, the trainer, and a backend that is set up by hand."""

import numpy as np
from ray import train
from ray.air import ScalingConfig, session
from ray.train.tensorflow import TensorflowConfig, TensorflowTrainer

worker_batch_size = 8


def train_func():
    import tensorflow as tf

    batch_size = worker_batch_size * train.world_size()
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
        model.compile(optimizer="sgd", loss="mse")
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((32, 4)), np.zeros((32, 1)))).batch(batch_size)
    model.fit(dataset)
    session.report({"batch_size": batch_size})


# For GPU Training, set `use_gpu` to True.
use_gpu = False
trainer = TensorflowTrainer(train_func, scaling_config=ScalingConfig(use_gpu=use_gpu, num_workers=2))
print(trainer.fit().metrics["batch_size"])

trainer = TensorflowTrainer(
    train_func, tensorflow_backend=TensorflowConfig(), scaling_config=ScalingConfig(num_workers=2)
)
print(trainer.fit().metrics["batch_size"])
