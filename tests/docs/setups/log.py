"""Files of docs/log.md: a log in which nodes are switched on."""

SIMULATE = (
    "wattline simulate --trace synth:count=40,load=0.3,gpus_total=64 --cluster 8xa100:8"
    " --policy fifo --place pack+power --log run.jsonl.gz"
)
BEFORE = {"gzip": lambda page: page.run_shell(SIMULATE)}
