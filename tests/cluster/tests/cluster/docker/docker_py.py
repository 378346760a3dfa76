"""Calls of docker-py, unchanged: docker_py.py URL [DIRECTORY of certificates]. Prints each that worked."""

import io
import ssl
import sys
import tarfile
import time

import docker
from docker.errors import APIError, NotFound
from docker.types import EndpointSpec, RestartPolicy, ServiceMode, UpdateConfig

IMAGE = "nginx:1.27"
arguments = {"base_url": sys.argv[1], "timeout": 60, "version": "auto"}
if len(sys.argv) > 2:
    certificates = sys.argv[2]
    arguments["tls"] = docker.tls.TLSConfig(
        client_cert=(f"{certificates}/cert.pem", f"{certificates}/key.pem"),
        ca_cert=f"{certificates}/ca.pem",
        verify=True,
        # Versions before 7 speak 1.2 otherwise.
        ssl_version=ssl.PROTOCOL_TLS_CLIENT,
    )
client = docker.DockerClient(**arguments)


def worked(name, condition=True):
    assert condition, name
    print(name)


def eventually(name, find, expected):
    deadline = time.monotonic() + 30
    while (found := find()) != expected:
        assert time.monotonic() < deadline, f"{name}: {found}"
        time.sleep(0.05)
    worked(name)


def states(service):
    """The states of the tasks that are to run."""
    tasks = service.tasks(filters={"desired-state": "running"})
    return [task["Status"]["State"] for task in tasks]


def refused(name, status, call):
    try:
        call()
    except APIError as error:
        worked(f"{name} is refused", error.status_code == status and error.explanation)
        return
    raise AssertionError(f"{name} was not refused")


worked("ping", client.ping())
worked("version", client.version()["ApiVersion"] == "1.44")
worked("info", client.info()["Swarm"]["ControlAvailable"])
worked("swarm.attrs", client.swarm.attrs["ID"])
client.swarm.reload()
worked("swarm.reload")

node = client.nodes.list()[0]
worked("nodes.list", node.attrs["Description"]["Hostname"] == "n1")
worked("nodes.get", client.nodes.get(node.id).id == node.id)
spec = dict(node.attrs["Spec"], Labels={"zone": "a"})
node.update(spec)
node.reload()
worked("node.update", node.attrs["Spec"]["Labels"] == {"zone": "a"})

for kind, data in (("secrets", b"s3cret"), ("configs", b"setting")):
    api = getattr(client, kind)
    made = api.create(name="one", data=data)
    worked(f"{kind}.create", made.id)
    worked(f"{kind}.get", api.get(made.id).name == "one")
    worked(f"{kind}.list", [found.name for found in api.list(filters={"name": "one"})] == ["one"])
    made.remove()
    worked(f"{kind}.remove", api.list() == [])

network = client.networks.create("back", driver="overlay")
worked("networks.create", network.id)
worked("networks.get", client.networks.get("back").name == "back")
worked("networks.list", [found.name for found in client.networks.list(names=["back"])] == ["back"])
network.remove()
worked("networks.remove", not client.networks.list(names=["back"]))

volume = client.volumes.create("data", labels={"a": "b"})
worked("volumes.create", volume.name == "data")
worked("volumes.get", client.volumes.get("data").attrs["Labels"] == {"a": "b"})
worked("volumes.list", [found.name for found in client.volumes.list()] == ["data"])
volume.remove()
worked("volumes.remove", client.volumes.list() == [])

service = client.services.create(
    IMAGE,
    name="web",
    args=["serve"],
    labels={"tier": "front"},
    container_labels={"a": "b"},
    env=["A=1"],
    endpoint_spec=EndpointSpec(ports={8080: 80}),
    mode=ServiceMode("replicated", 1),
    restart_policy=RestartPolicy("on-failure"),
    update_config=UpdateConfig(parallelism=1, order="start-first"),
)
worked("services.create", service.name == "web")
worked("services.list", [found.name for found in client.services.list(filters={"label": "tier=front"})] == ["web"])
worked("services.get", client.services.get("web").id == service.id)
eventually("service.tasks", lambda: states(service), ["running"])
worked("service.logs", b"hello from a task" in b"".join(service.logs(stdout=True)))
service.scale(2)
eventually("service.scale", lambda: states(service), ["running", "running"])
service.reload()
worked("service.reload", service.attrs["Spec"]["Mode"]["Replicated"]["Replicas"] == 2)
service.update(image=IMAGE, args=["serve"], labels={"tier": "back"})
service.reload()
worked("service.update", service.attrs["Spec"]["Labels"] == {"tier": "back"})
service.force_update()


def update_state():
    service.reload()
    return service.attrs.get("UpdateStatus", {}).get("State")


eventually("service.force_update", update_state, "completed")


def running():
    return client.containers.list(filters={"name": "web"})


eventually("containers.list", lambda: bool(running()), True)
container = running()[0]
worked("containers.get", client.containers.get(container.id).id == container.id)
worked("container.attrs", container.attrs["Config"]["Image"] == IMAGE and container.status == "running")
worked("container.logs", container.logs(stdout=True) == b"hello from a task\n")
worked("container.top", container.top()["Processes"][0][1] == "71")
container.kill(signal="USR1")
worked("container.kill with a signal")
worked("container.stats", container.stats(stream=False)["id"] == container.id)
result = container.exec_run(["cat"], demux=True)
worked("container.exec_run", result.exit_code == 7 and result.output == (None, b"the input ended"))
chunks, stat = container.get_archive("/etc/motd")
packed = b"".join(chunks)
with tarfile.open(fileobj=io.BytesIO(packed)) as files:
    worked("container.get_archive", files.extractfile("motd").read() == b"hello" and stat["name"] == "motd")
worked("container.put_archive", container.put_archive("/etc", packed))
refused("container.stop of a service", 409, lambda: container.stop(timeout=1))
container.restart()
worked("container.restart")
service.remove()
# It is listed until its tasks have ended.
eventually("service.remove", client.services.list, [])

worked("containers.run", client.containers.run(IMAGE, ["exit", "0"], remove=True) == b"hello from a task\n")
try:
    client.containers.run(IMAGE, ["exit", "3"], remove=True)
    raise AssertionError("an exit code other than 0 is an error")
except docker.errors.ContainerError as error:
    worked("containers.run with an exit code", error.exit_status == 3)
job = client.containers.run(IMAGE, ["serve"], detach=True, name="job", labels={"a": "b"}, mem_limit="64m", ports={"80/tcp": 8081})
worked("containers.run detached", job.name == "job" and job.id in [found.id for found in client.containers.list()])
job.reload()
worked("container.reload", job.status == "running" and job.labels["a"] == "b")
job.stop(timeout=1)
job.reload()
worked("container.stop", job.status == "exited")
job.start()
job.reload()
worked("container.start", job.status == "running")
job.kill()
job.reload()
worked("container.kill", job.status == "exited")
worked("containers.list all", "job" in [found.name for found in client.containers.list(all=True)])
job.remove()
worked("container.remove", client.containers.list(all=True) == [])
once = client.containers.create(IMAGE, ["exit", "5"], name="once")
worked("containers.create", once.status == "created")
once.start()
worked("container.wait", once.wait()["StatusCode"] == 5)
once.remove(force=True)
interactive = client.containers.create(IMAGE, ["serve"], name="interactive", stdin_open=True)
worked("containers.create with stdin_open", interactive.attrs["Config"]["OpenStdin"])
interactive.remove()
for name in ("diff", "pause", "unpause"):
    other = client.containers.create(IMAGE, ["serve"], name="other")
    refused(f"container.{name}", 501, getattr(other, name))
    other.remove()
idle = client.containers.create(IMAGE, ["serve"], name="idle")
refused("container.top of one that does not run", 409, idle.top)
worked("containers.prune", client.containers.prune()["ContainersDeleted"] == [idle.id])

worked("images.list", [image.tags for image in client.images.list()] == [[IMAGE]])
worked("images.get", client.images.get(IMAGE).tags == [IMAGE])
worked("images.pull", client.images.pull("nginx", tag="1.27").tags == [IMAGE])
# The last line of the response names the image.
worked("images.load", client.images.load(packed)[0].tags == [IMAGE])
worked("images.prune", "SpaceReclaimed" in client.images.prune(filters={"dangling": False}))
worked("images.get_registry_data", client.images.get_registry_data(IMAGE).id.startswith("sha256:"))
client.images.remove(IMAGE)
worked("images.remove")
refused("images.search", 501, lambda: client.images.search("nginx"))
refused("image.tag", 501, lambda: client.images.get(IMAGE).tag("other"))
worked("df", client.df()["Images"])

kinds = {event["Type"] for event in client.events(decode=True, since=1, until=int(time.time()))}
worked("events", {"service", "secret", "network"} <= kinds)
try:
    client.containers.get("missing")
    raise AssertionError("a missing container was found")
except NotFound:
    worked("NotFound")
