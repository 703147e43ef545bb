"""A stand-in for Pyxis: a plugin of Slurm that takes its flags, and puts them into variables of the task.

It shows that srun accepts the flags and that a job works through them, and nothing of Pyxis itself.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_SOURCE = r"""
#include <stdint.h>
#include <string.h>

typedef struct spank_handle *spank_t;
struct spank_option {
    char *name, *arginfo, *usage;
    int has_arg, val;
    int (*cb)(int val, const char *optarg, int remote);
};
extern int spank_option_register(spank_t, struct spank_option *);
extern int spank_setenv(spank_t, const char *, const char *, int);

const char plugin_name[] = "pyxis_stand_in";
const char plugin_type[] = "spank";
const uint32_t plugin_version = VERSION;
const uint32_t spank_plugin_version = 1;

static char *values[3];

static int keep(int val, const char *optarg, int remote) {
    values[val] = strdup(optarg);
    return 0;
}

static struct spank_option options[] = {
    {"container-image", "IMAGE", "image", 1, 0, keep},
    {"container-mounts", "MOUNTS", "mounts", 1, 1, keep},
    {"container-workdir", "PATH", "working folder", 1, 2, keep},
};

int slurm_spank_init(spank_t spank, int count, char **words) {
    for (int n = 0; n < 3; n++)
        if (spank_option_register(spank, &options[n]))
            return -1;
    return 0;
}

int slurm_spank_user_init(spank_t spank, int count, char **words) {
    static const char *names[] = {"CONTAINER_IMAGE", "CONTAINER_MOUNTS", "CONTAINER_WORKDIR"};
    for (int n = 0; n < 3; n++)
        if (values[n])
            spank_setenv(spank, names[n], values[n], 1);
    return 0;
}
"""


def write_plugin(folder: Path) -> None:
    """Compile the plugin into a cluster's folder, and let Slurm's commands and slurmd load it from now on."""
    text = subprocess.run(["srun", "--version"], capture_output=True, text=True, check=True).stdout
    major, minor, micro = (int(word) for word in re.findall(r"\d+", text)[:3])
    source, plugin = folder / "pyxis.c", folder / "pyxis.so"
    source.write_text(_SOURCE)
    version = f"-DVERSION={(major << 16) | (minor << 8) | micro}"
    subprocess.run(["gcc", "-shared", "-fPIC", version, "-o", plugin, source], check=True)
    (folder / "plugstack.conf").write_text(f"required {plugin}\n")
