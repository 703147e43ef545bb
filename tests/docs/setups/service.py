"""Files of docs/service.md, and the jobs that its commands name."""

import getpass
import json

from support.page_samples import TRAIN

FILES = {"train.py": TRAIN, "job.yaml": "run: python train.py\n"}
REPLACE = {
    "--user ann": f"--user {getpass.getuser()}",
    "wattline cancel 12 14 ": "wattline cancel -y 12 14 ",
    "wattline hold --sweep 12 ": "wattline hold -y --sweep 12 ",
    "wattline priority --team": "wattline priority -y --team",
}


def submit_sweep(page):
    """Fill the queue up to job 11, and submit the sweep that begins with job 12."""
    fill = "run: python train.py ${n}\nname: fill ${n}\nmatrix: {n: 1..N}\n"
    sweep = (
        "run: python train.py lr=${lr}\nname: lr${lr}\nteam: vision\nmatrix: {lr: 0..9}\ndepends_on: big\n"
    )
    (page.folder / "sweep.yaml").write_text(sweep)
    page.run_shell("wattline submit --name big -- sleep 600")
    known = len(json.loads(page.run_shell("wattline queue --all --json 2> /dev/null"))["jobs"])
    (page.folder / "fill.yaml").write_text(fill.replace("N", str(11 - known)))
    page.run_shell("wattline submit fill.yaml; wattline submit sweep.yaml")


BEFORE = {
    "wattline explain 2": lambda page: page.run_shell("wattline submit --name big --gpus 4 -- sleep 3"),
    "wattline cancel 12 14": submit_sweep,
}
