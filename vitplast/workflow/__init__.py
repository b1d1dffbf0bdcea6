"""The units of a profile as one Snakemake workflow, for a laptop, a machine with GPUs, Slurm and Kubernetes.

`planning` writes down what each unit's job runs and needs, `Snakefile` makes jobs of that (stamps, logs, retries),
`command` puts the line for Snakemake together, `devices` hands the GPUs of one machine out. Snakemake owns the stamps
only: the results lie in the store, whose guards (`vitplast.runs.guard`) run each unit once however often it is
submitted. The Snakefile imports nothing of this package, so Snakemake may be installed in an environment of its own.
"""

from vitplast.workflow.command import PLACES, arguments, snakemake
from vitplast.workflow.planning import Needs, plan_folder, settle, write_plan

__all__ = ["PLACES", "Needs", "arguments", "plan_folder", "settle", "snakemake", "write_plan"]
