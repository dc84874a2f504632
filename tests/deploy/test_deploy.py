"""What deploy/ says is true: commands, options, ports, paths, labels and grace periods fit the code and each other.

There is no Docker engine where these tests run: the Dockerfile is read here, not built.
"""

from __future__ import annotations

import ast
import asyncio
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml  # type: ignore[import-untyped]

from penstock.cli.main import main
from penstock.testing import memory_queue
from penstock.worker.listener import listening, parse_address
from penstock.worker.worker import Worker

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
INSTALLED = "/opt/penstock/bin/penstock"

SERVICE_PATHS = {"/livez", "/readyz", "/metrics"}


def program(name: str) -> str:
    """A program that is good to have and that nobody is made to install."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"the program {name} is not installed")
    return found


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


class Instruction(NamedTuple):
    name: str
    arguments: str

    @property
    def listed(self) -> list[str]:
        """What a JSON list says, and only such a list: a shell in between would keep signals to itself."""
        found: list[str] = json.loads(self.arguments)
        return found


def dockerfile() -> list[Instruction]:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for each in dockerfile():
        if each.name == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def compose() -> dict[str, Any]:
    [found] = documents(DEPLOY / "compose.yaml")
    return found


def unit(path: Path) -> dict[str, str]:
    """The settings of a unit; of those that are given twice, the last."""
    lines = [line.partition("=") for line in path.read_text().splitlines() if not line.startswith("#")]
    return {name: value for name, equals, value in lines if equals}


def resources(kind: str | None = None) -> list[dict[str, Any]]:
    everything = [each for path in sorted(KUBERNETES.glob("*.yaml")) for each in documents(path)]
    return [each for each in everything if kind in (None, each["kind"])]


def deployments() -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in resources("Deployment")
    }


def commands() -> Iterator[tuple[str, list[str]]]:
    """Everything that deploy/ has `penstock` do."""
    yield "Dockerfile", next(each for each in dockerfile() if each.name == "CMD").listed
    for name, service in compose()["services"].items():
        if service["image"] == "penstock":
            yield f"compose {name}", service["command"]
    for path in UNITS:
        started = shlex.split(unit(path)["ExecStart"])
        assert started[0] == INSTALLED
        yield path.name, started[1:]
    for resource in [*resources("Deployment"), *resources("Job")]:
        pod = resource["spec"]["template"]["spec"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield f"{resource['metadata']['name']} {container['name']}", container["args"]


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


COMMANDS = list(commands())


@pytest.mark.parametrize(
    "path", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda path: str(path.relative_to(DEPLOY))
)
def test_yaml_is_yaml(path: Path) -> None:
    assert all(isinstance(each, dict) for each in documents(path))


@pytest.mark.parametrize(("where", "arguments"), COMMANDS, ids=[where for where, _ in COMMANDS])
def test_commands_are_what_the_command_line_takes(where: str, arguments: list[str]) -> None:
    name, *rest = arguments
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_context(name, rest)  # parses them and runs nothing


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        test_commands_are_what_the_command_line_takes("", ["worker", "a:app", "--listen-on", ":1"])


def test_whoever_stops_a_worker_waits_longer_than_its_grace_period() -> None:
    waits = {
        "compose worker": seconds(compose()["services"]["worker"]["stop_grace_period"]),
        "penstock-worker@.service": seconds(
            unit(DEPLOY / "systemd/penstock-worker@.service")["TimeoutStopSec"]
        ),
        "penstock-worker worker": deployments()["worker"]["spec"]["template"]["spec"][
            "terminationGracePeriodSeconds"
        ],
    }
    graces = {where: float(option(each, "--grace")) for where, each in COMMANDS if each[0] == "worker"}
    assert waits.keys() == graces.keys()
    assert all(waits[where] >= graces[where] + 10 for where in waits)


class TestDockerfile:
    def test_has_only_instructions_that_there_are(self) -> None:
        known = {
            "ARG",
            "FROM",
            "WORKDIR",
            "COPY",
            "RUN",
            "LABEL",
            "ENV",
            "USER",
            "EXPOSE",
            "STOPSIGNAL",
            "HEALTHCHECK",
            "ENTRYPOINT",
            "CMD",
        }
        assert {each.name for each in dockerfile()} <= known
        assert dockerfile()[0].name in ("ARG", "FROM")

    def test_builds_in_one_stage_and_runs_in_another_on_the_same_python(self) -> None:
        build, last = stages()
        image, _, name = build[0].arguments.partition(" AS ")
        assert last[0].arguments == image, "a virtual environment points at its Python"
        assert [each.arguments for each in last if each.name == "COPY"] == [
            f"--from={name} /opt/penstock /opt/penstock"
        ]
        for each in last:
            assert not re.search(r"\b(apt-get|gcc|make|git|curl|pip install)\b", each.arguments)

    def test_runs_as_nobody_in_particular_and_hears_signals(self) -> None:
        last = {each.name: each for each in stages()[-1]}
        uid, _, gid = last["USER"].arguments.partition(":")
        assert int(uid) == int(gid) >= 10_000
        assert last["STOPSIGNAL"].arguments == "SIGTERM"
        assert last["ENTRYPOINT"].listed == ["penstock"]
        assert last["CMD"].listed[0] == "serve"
        assert option(last["CMD"].listed, "--port") == last["EXPOSE"].arguments

    def test_copies_what_is_there_and_not_ignored(self) -> None:
        ignored, *patterns = [
            line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
        ]
        assert ignored == "*"
        let_in = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        for each in stages()[0]:
            if each.name == "COPY":
                *sources, _ = each.arguments.split()
                for source in sources:
                    assert (ROOT / source).exists(), source
                    assert any(fnmatch(source, pattern) for pattern in let_in), source
        assert all((ROOT / pattern).exists() for pattern in let_in)

    def test_names_extras_that_there_are(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        text = (DEPLOY / "Dockerfile").read_text()
        named = {extra for found in re.findall(r"EXTRAS=([a-z,]+)", text) for extra in found.split(",")}
        assert {"cli", "postgres", "server"} <= named <= project["optional-dependencies"].keys()

    async def test_the_health_checks_tell_a_worker_that_answers_from_one_that_does_not(self) -> None:
        [check] = [each.arguments for each in dockerfile() if each.name == "HEALTHCHECK"]
        of_image = json.loads(check.partition("CMD ")[2])
        kind, *of_worker = compose()["services"]["worker"]["healthcheck"]["test"]
        assert kind == "CMD"
        port = str(parse_address(option(compose()["services"]["worker"]["command"], "--listen"))[1])
        async with listening(Worker(memory_queue(), {}), "127.0.0.1:0") as address:
            assert address is not None
            own = address.rpartition(":")[2]
            for (_, flag, code), there in ((of_image, "8080"), (of_worker, port)):
                assert there in code
                healthy = await asyncio.to_thread(run, sys.executable, flag, code.replace(there, own))
                assert healthy.returncode == 0, healthy.stderr
                lost = code.replace(there, own).replace("/livez", "/nowhere")
                assert (await asyncio.to_thread(run, sys.executable, flag, lost)).returncode == 1
        gone = await asyncio.to_thread(run, sys.executable, flag, code.replace(there, own))
        assert gone.returncode == 1


class TestBuild:
    """build.sh with a Python that only pretends, since the tests fetch nothing."""

    @pytest.fixture
    def pretend(self, tmp_path: Path) -> dict[str, str]:
        python = tmp_path / "bin/python"
        python.parent.mkdir()
        python.write_text(
            "#!/bin/sh\n"
            'case "$*" in *"pip download"*) ;; *) exit 0 ;; esac\n'
            'while [ "$1" != --dest ]; do shift; done\n'
            'mkdir -p "$2" && printf tampered > "$2/hatchling-1-py3-none-any.whl"\n'
        )
        python.chmod(0o755)
        return {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}

    def test_refuses_what_the_lock_does_not_know(self, tmp_path: Path, pretend: dict[str, str]) -> None:
        built = run("sh", str(DEPLOY / "build.sh"), str(ROOT), str(tmp_path / "venv"), "cli", env=pretend)
        assert built.returncode == 1
        assert "hatchling-1-py3-none-any.whl is not in requirements.lock with the hash" in built.stderr
        assert not (tmp_path / "venv").exists()
        assert [each.name for each in tmp_path.iterdir()] == ["bin"], "it tidies up"

    def test_is_a_script_that_a_plain_shell_reads(self) -> None:
        assert run("sh", "-n", str(DEPLOY / "build.sh")).returncode == 0
        assert os.access(DEPLOY / "build.sh", os.X_OK)


class TestCompose:
    def test_names_what_there_is(self) -> None:
        file = compose()
        for name, service in file["services"].items():
            for needed in service.get("depends_on", []):
                assert needed in file["services"], name
            for volume in service.get("volumes", []):
                source = volume.partition(":")[0]
                assert (DEPLOY / source).exists() if source.startswith(".") else source in file["volumes"], (
                    volume
                )

    def test_asks_only_for_variables_of_the_example(self) -> None:
        example = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
        asked = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
        assert asked == example.keys()
        assert set(example.values()) == {"change-me"}, "no secret is ever in the example"
        assert ".env" in (DEPLOY / ".gitignore").read_text().split()

    def test_migrates_before_anything_works(self) -> None:
        services = compose()["services"]
        assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
        for name in ("serve", "worker"):
            assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}

    def test_the_workers_app_is_one_of_the_examples(self) -> None:
        worker = compose()["services"]["worker"]
        assert worker["deploy"]["replicas"] == 2
        [mounted] = worker["volumes"]
        folder, target, _ = mounted.split(":")
        assert f"WORKDIR {target}" in (DEPLOY / "Dockerfile").read_text()
        module, _, name = worker["command"][1].partition(":")
        tree = ast.parse((DEPLOY / folder / f"{module}.py").read_text())
        assigned = [each.targets[0] for each in tree.body if isinstance(each, ast.Assign)]
        assert name in [each.id for each in assigned if isinstance(each, ast.Name)]

    def test_prometheus_finds_the_services_at_their_ports(self) -> None:
        services = compose()["services"]
        ports = {
            "serve": int(option(services["serve"]["command"], "--port")),
            "worker": parse_address(option(services["worker"]["command"], "--listen"))[1],
        }
        [config] = documents(DEPLOY / "prometheus/prometheus.yaml")
        found = [where for job in config["scrape_configs"] for where in job["dns_sd_configs"]]
        assert {name: where["port"] for where in found for name in where["names"]} == ports

    def test_docker_compose_takes_it(self) -> None:
        docker = program("docker")
        if run(docker, "compose", "version").returncode != 0:
            pytest.skip("docker has no compose plugin here")
        files = ("-f", str(DEPLOY / "compose.yaml"), "--env-file", str(DEPLOY / ".env.example"))
        checked = run(docker, "compose", *files, "--profile", "monitoring", "config", "--quiet")
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
class TestSystemd:
    @pytest.fixture
    def installed(self, path: Path, tmp_path: Path) -> Path:
        """The unit with a command that is really there, which is looked for."""
        command = Path(sys.executable).with_name("penstock")
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace(INSTALLED, str(command)))
        return copy

    def test_systemd_takes_it(self, path: Path, installed: Path) -> None:
        checked = run(program("systemd-analyze"), "verify", str(installed))
        assert (checked.returncode, checked.stderr) == (0, "")

    def test_systemd_finds_it_hardened(self, path: Path, installed: Path) -> None:
        analyze = program("systemd-analyze")
        if int(run(analyze, "--version").stdout.split()[1]) < 250:
            pytest.skip("this systemd-analyze cannot look at a file that is not installed")
        checked = run(analyze, "security", "--offline=yes", "--threshold=20", "--no-pager", str(installed))
        assert checked.returncode == 0, checked.stdout[-500:]

    def test_is_stopped_gently_and_runs_as_nobody_in_particular(self, path: Path) -> None:
        found = unit(path)
        assert found["KillSignal"] == "SIGTERM"
        assert found["KillMode"] == "mixed", "a second signal from systemd would hurry the children"
        assert (found["DynamicUser"], found["ProtectSystem"], found["NoNewPrivileges"]) == (
            "yes",
            "strict",
            "yes",
        )

    def test_every_variable_is_in_an_example(self, path: Path) -> None:
        examples = [each.read_text() for each in (DEPLOY / "systemd").glob("*.env.example")]
        known = {name for text in examples for name in re.findall(r"^(\w+)=", text, re.MULTILINE)}
        assert set(re.findall(r"\$\{(\w+)\}", unit(path)["ExecStart"])) <= known


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def ports_of(deployment: dict[str, Any]) -> dict[str, int]:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


class TestKubernetes:
    def test_names_no_namespace(self) -> None:
        assert not [each for each in resources() if "namespace" in each.get("metadata", {})]

    def test_every_selector_finds_one_deployment(self) -> None:
        for each in resources("Deployment"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert selects(each["spec"]["selector"]["matchLabels"], labels)
        selectors = [
            *(each["spec"]["selector"] for each in resources("Service")),
            *(each["spec"]["selector"]["matchLabels"] for each in resources("PodDisruptionBudget")),
            *(each["spec"]["podSelector"]["matchLabels"] for each in resources("NetworkPolicy")),
        ]
        assert len(selectors) == 4
        for selector in selectors:
            pods = [
                each["spec"]["template"]["metadata"]["labels"]
                for each in [*resources("Deployment"), *resources("Job")]
            ]
            assert sum(selects(selector, labels) for labels in pods) == 1, selector

    def test_services_and_policies_name_ports_of_what_they_select(self) -> None:
        for each in resources("Service"):
            deployment = deployments()[each["spec"]["selector"]["app.kubernetes.io/component"]]
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports_of(deployment).keys()
        for each in resources("NetworkPolicy"):
            deployment = deployments()[each["metadata"]["labels"]["app.kubernetes.io/component"]]
            named = {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]}
            assert named == ports_of(deployment).keys()

    def test_containers_listen_where_their_commands_say(self) -> None:
        for name, flag in (("serve", "--port"), ("worker", "--listen")):
            template = deployments()[name]["spec"]["template"]
            [container] = template["spec"]["containers"]
            listens = int(option(container["args"], flag).rpartition(":")[2])
            assert list(ports_of(deployments()[name]).values()) == [listens]
            assert template["metadata"]["annotations"]["prometheus.io/port"] == str(listens)

    async def test_probes_name_paths_that_are_answered(self) -> None:
        async with listening(Worker(memory_queue(), {}), "127.0.0.1:0") as address:
            assert address is not None
            for name, deployment in deployments().items():
                [container] = deployment["spec"]["template"]["spec"]["containers"]
                paths = [deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]]
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    asked = container[probe]["httpGet"]
                    assert asked["port"] in ports_of(deployment)
                    paths.append(asked["path"])
                assert paths == ["/metrics", "/livez", "/livez", "/readyz"]
                assert set(paths) <= SERVICE_PATHS
                if name == "worker":
                    for path in paths:
                        connection = http.client.HTTPConnection(address, timeout=30)
                        connection.request("GET", path)
                        assert connection.getresponse().status in (200, 503), path
                        connection.close()

    def test_pods_have_no_more_rights_than_they_need(self) -> None:
        [user] = [each.arguments.partition(":")[0] for each in dockerfile() if each.name == "USER"]
        for each in [*resources("Deployment"), *resources("Job")]:
            pod = each["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] == int(user)
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }

    def test_every_secret_that_is_asked_for_is_in_the_example(self) -> None:
        [secret] = resources("Secret")
        asked = re.findall(
            r"secretKeyRef: \{name: (\w+), key: (\w+)",
            "".join(each.read_text() for each in KUBERNETES.glob("*.yaml")),
        )
        assert {name for name, _ in asked} == {secret["metadata"]["name"]}
        assert {key for _, key in asked} == secret["stringData"].keys()

    def test_what_is_scaled_is_there(self) -> None:
        [scaled] = resources("ScaledObject")
        assert scaled["spec"]["scaleTargetRef"]["name"] == deployments()["worker"]["metadata"]["name"]

    def test_kustomize_takes_it(self) -> None:
        [file] = documents(KUBERNETES / "kustomization.yaml")
        examples = {path.name for path in KUBERNETES.glob("*.example.yaml")}
        assert {*file["resources"], "kustomization.yaml"} == {
            path.name for path in KUBERNETES.glob("*.yaml")
        } - examples
        built = run(program("kubectl"), "kustomize", str(KUBERNETES))
        assert built.returncode == 0, built.stderr
        made = list(yaml.safe_load_all(built.stdout))
        assert len(made) == 7
        assert "image: penstock\n" not in built.stdout, (
            "each image is replaced by the one of the kustomization"
        )
