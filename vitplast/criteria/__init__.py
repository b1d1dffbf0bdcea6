"""Criteria that say which component to finetune, before any finetuning: one number each, larger = finetune first.

`catalogue` names them all with their sources. One idea a module: `plasticity`, `branch`, `relative`, `jacobian`,
`bounded` look at rates of change; `accumulate` streams gradients, from which `norms`, `surgical`, `sensitivity`,
`fisher` and `residual` score; `spectrum` looks at singular values; `constant` at nothing. `head` gives the model the
head that a loss needs, `scores` is the form of every answer, `survey` asks them all.
"""
