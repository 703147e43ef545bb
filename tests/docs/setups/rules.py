"""docs/rules.md, on a Slurm cluster without a topology, of which scontrol complains."""

REPLACE = {"scontrol show topology": "(scontrol show topology || true)"}
