"""The cheapest power cap of a training job, by its measured models, and the time that it costs."""

import numpy as np

import wattline as wl
from wattline.models.cost import sample_cost

models = wl.library()
caps = np.arange(100.0, 251.0, 25.0)
for model, batch in (("resnet50", 256), ("bert-squad", 32), ("neumf", 1024)):
    samples_s, watts = models.predict(model, "v100", batch=batch, cap_w=caps)
    for eta in (0.5, 1.0):
        best = int(np.argmin(sample_cost(samples_s, watts, eta=eta, max_w=250.0)))
        slower = samples_s[-1] / samples_s[best] - 1
        saved = 1 - (watts[best] / samples_s[best]) / (watts[-1] / samples_s[-1])
        print(
            f"{model:10} batch {batch:4}, eta {eta}: cap {caps[best]:.0f} W,"
            f" {slower:.0%} slower, {saved:.0%} less energy"
        )
