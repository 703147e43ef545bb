"""Public data sets: source, licence, and the SHA-256 of each file where it is known.

A file has no checksum here if its public original was not at hand byte by byte (`sha256=""`): `fetch` then
prints the one it computed, and keeps the file only if the user accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattline.errors import NotFound, did_you_mean


@dataclass(frozen=True)
class DataFile:
    """One file: its name in the folder of its set, its address and its SHA-256 (empty: not known)."""

    name: str
    url: str
    sha256: str = ""


@dataclass(frozen=True)
class DataSet:
    """Files of one source. *used_by* are the experiments of `wattline reproduce` that read it."""

    name: str
    about: str
    source: str
    licence: str
    files: tuple[DataFile, ...]
    used_by: tuple[str, ...] = ()


def _list_files(base: str, *files: tuple[str, str]) -> tuple[DataFile, ...]:
    """Return files below *base*, each a path there and its SHA-256."""
    return tuple(DataFile(path.rpartition("/")[2], f"{base}/{path}", sha256) for path, sha256 in files)


_RAW = "https://raw.githubusercontent.com"

SETS = {
    one.name: one
    for one in (
        DataSet(
            "zeus",
            "trainings to a target by batch size, and power by power limit, on V100 and A40 (NSDI'23)",
            "github.com/ml-energy/zeus",
            "Apache-2.0",
            _list_files(
                f"{_RAW}/ml-energy/zeus/master/examples/research_reproducibility/zeus_nsdi23/trace",
                ("summary_train.csv", ""),
                ("summary_power_v100.csv", ""),
                ("summary_power_a40.csv", ""),
            ),
            ("zeus",),
        ),
        DataSet(
            "itp",
            "69,351 jobs of ten clusters of Microsoft, with models and deadlines (ElasticFlow, ASPLOS'23)",
            "github.com/microsoft/elasticflow-traces",
            "MIT",
            _list_files(
                f"{_RAW}/microsoft/elasticflow-traces/277ed24d0e908c31a1c98145819e2e3853d8ac00/data",
                ("elasticflow-traces.tar.gz", ""),
            ),
            ("powerflow",),
        ),
        DataSet(
            "philly",
            "82,247 jobs of Microsoft's Philly cluster (ATC'19) as Pollux' authors tabulated them",
            "github.com/petuum/adaptdl, from github.com/msr-fiddle/philly-traces",
            "Apache-2.0; the original trace CC-BY-4.0",
            _list_files(
                f"{_RAW}/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/traces",
                ("philly.csv", ""),
            ),
            ("powerflow",),
        ),
        DataSet(
            "synergy",
            "the two traces of Synergy's physical cluster, 100 jobs each (OSDI'22)",
            "github.com/msr-fiddle/synergy",
            "MIT",
            (
                *_list_files(
                    f"{_RAW}/msr-fiddle/synergy/a5276ca1947c429e03ce19c57a8709a160b536bd/simulator",
                    (
                        "deploy_trace/static_100job_6_3_1100.0",
                        "eb1ba6821efa27b26ab4bad91080feee8e0416b9c841f0e87925721c4a63f7a1",
                    ),
                ),
                *_list_files(
                    f"{_RAW}/msr-fiddle/synergy/0722ee2b66125bde073fe76c2489178308922dd4/simulator",
                    (
                        "deploy_trace/dynamic/srtf.log",
                        "c2ae34cd5cfe8e7638bc0d4207c70febf843bc66bbf3e61d9f100edb826e54b9",
                    ),
                ),
            ),
            ("synergy",),
        ),
        DataSet(
            "andreas",
            "run times by GPU kind and number, power and prices of ANDREAS' scenarios",
            "github.com/ai-sprint-eu-project/GPUScheduler",
            "Apache-2.0",
            _list_files(
                f"{_RAW}/ai-sprint-eu-project/GPUScheduler/0f0ccf6eb00a13f6748bf427fc9933a130bb056f/build/data",
                ("data_server.csv", "23766f5f22e8ad34892a22123d91adc770578f44d9c9e0aaf171165505faf4c5"),
                (
                    "GPU-cost_server_4-2.csv",
                    "d922649b1cb884a599c08cd7cad562e4321639a219e630b20a4f3fa696c0ee85",
                ),
                ("GPU-cost_server.csv", "fca528f9fa9bcba925ba1d1fea700a2ecd2750185bb27036cd43552b82ce4e1a"),
                ("data_2d10d_filtered.csv", ""),
            ),
            ("andreas",),
        ),
        DataSet(
            "pollux",
            "eight workloads of 160 jobs, sampled from Philly's busiest hours (OSDI'21)",
            "github.com/petuum/adaptdl, branch osdi21-artifact",
            "Apache-2.0",
            _list_files(
                f"{_RAW}/petuum/adaptdl/c793c7089bd307462686339d29707925c461f9a9/simulator/workloads",
                ("workload-1.csv", "0bff9c3a36b52c7025484b666d788001b1478cc4d84be409ca04b28f58f9d162"),
                ("workload-2.csv", "83bec266667ec209a202c10975ab321e52eb4989e5ba420d18003ed03cf15c4e"),
                ("workload-3.csv", "d76d5d1e3f9143b5453083de5c7a4c6576e884b41e86434a624b08f2c4277dc0"),
                ("workload-4.csv", "22c400f59637ba0fc2c9be3b491f67e0765d1bf33d0a57d76101d770e4443f21"),
                ("workload-5.csv", "4761ea418f2cb618f79e1dcfc003d24de2810ec8d0af2ecf8895690d088c3930"),
                ("workload-6.csv", "d6517c4d57c72e4f362f9e99f285e4f7fee0348913287033f11f02f5cb88f074"),
                ("workload-7.csv", "fd29e99deef2c9edb758b431f3a04f896251a0ff6fb443567fb27580239462d5"),
                ("workload-8.csv", "13618461b7dd45974f77dbf8354aa2a5bf5e6e04b15dbc783b174e111816774d"),
            ),
        ),
        DataSet(
            "gavel",
            "steps per second of 26 job types on K80, P100 and V100 (OSDI'20)",
            "github.com/stanford-futuredata/gavel",
            "MIT",
            _list_files(
                f"{_RAW}/stanford-futuredata/gavel/c4fa40097339e9608ab71fd64c8bdea96a5e4a4c/scheduler",
                (
                    "simulation_throughputs.json",
                    "17111f7295f03265fd9e5118d7eba31e3dd9d6e50a2e215c13ad3d3f91f74381",
                ),
                (
                    "physical_cluster_throughputs.json",
                    "4b5acfe389951edf734df26caf5bbaacbbba2df60e340758c4ed220cd65f963c",
                ),
            ),
        ),
        DataSet(
            "openb",
            "8,152 pods and the nodes of an Alibaba cluster with shared GPUs (FGD, ATC'23)",
            "github.com/alibaba/clusterdata, cluster-trace-gpu-v2023",
            "no licence file in its folder; also in an Apache-2.0 repository of its authors",
            _list_files(
                f"{_RAW}/alibaba/clusterdata/7a6c496e4f4b6ce6150be8f881cb051bf2abff42/cluster-trace-gpu-v2023/csv",
                (
                    "openb_node_list_all_node.csv",
                    "5a85c2af79c66a1efff8bbcbda430400aae56d8431370d738480967e1a9c6b15",
                ),
                (
                    "openb_pod_list_default.csv",
                    "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
                ),
            ),
        ),
    )
}


def find_sets(name: str) -> tuple[DataSet, ...]:
    """Return the set of this name, or all; raises `NotFound`."""
    if name == "all":
        return tuple(SETS.values())
    if name not in SETS:
        near = did_you_mean(name, [*SETS, "all"]) or "wattline data list"
        raise NotFound(f"no data set is named {name!r}, expected one of {', '.join(SETS)}, all", near)
    return (SETS[name],)
