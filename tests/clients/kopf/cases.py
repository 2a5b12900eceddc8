"""Cases of `kopf`: its operator beside this file runs, and what it does to gardens is looked at from outside."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient

from case_runner import case, run_cases

NAMESPACE = os.environ["NAMESPACE"]
SCRATCH = os.environ["SCRATCH"]
HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = ("people.example", "v1", NAMESPACE, "gardens")
SECONDS = 20

config.load_kube_config()
core = client.CoreV1Api()
custom = client.CustomObjectsApi()
operators = []


def wait(what, function):
    end = time.monotonic() + SECONDS
    while not (value := function()):
        assert time.monotonic() < end, f"{what} did not come in {SECONDS} s"
        time.sleep(0.1)
    return value


def garden(name, plants=3, **annotations):
    body = {"apiVersion": "people.example/v1", "kind": "Garden", "metadata": {"name": name, "annotations": annotations}, "spec": {"plants": plants}}
    return custom.create_namespaced_custom_object(*PLACE, body)


def read(name):
    try:
        return custom.get_namespaced_custom_object(*PLACE, name)
    except ApiException as error:
        assert error.status == 404, error
        return None


def status(name):
    return read(name).get("status", {})


def patch(name, body):
    return custom.patch_namespaced_custom_object(*PLACE, name, body)


def names(kind):
    return [o.metadata.name for o in kind(NAMESPACE).items]


def start(priority, port):
    """One operator more; of several, the one with the highest priority acts and the others wait."""
    number = len(operators)
    log = open(f"{SCRATCH}/operator-{number}.log", "w", encoding="utf-8")
    server = urllib.parse.urlparse(client.Configuration.get_default_copy().host)
    with socket.create_connection((server.hostname, server.port)) as connection:
        own = connection.getsockname()[0]
    key, certificate = f"{SCRATCH}/hook.key", f"{SCRATCH}/hook.crt"
    if not os.path.exists(certificate):
        request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2"]
        subprocess.run(["openssl", *request, "-subj", "/CN=hook", "-addext", f"subjectAltName=IP:{own}"], check=True, stderr=log)
    environment = os.environ | {"WEBHOOK_HOST": own, "WEBHOOK_PORT": str(port), "WEBHOOK_CERT": certificate, "WEBHOOK_KEY": key}
    command = [sys.executable, "-m", "kopf", "run", "--verbose", "-n", NAMESPACE, "-p", str(priority), f"{HERE}/gardener.py"]
    operators.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))


def stop(operator):
    operator.send_signal(signal.SIGTERM)
    operator.wait(SECONDS)


@case
def definitions():
    """The server-side apply of its definitions and of the object that operators meet at."""
    dynamic = DynamicClient(client.ApiClient())
    with open(f"{HERE}/definitions.yaml", encoding="utf-8") as file:
        for body in yaml.safe_load_all(file):
            kind = wait("the kind", lambda: find(dynamic, body))
            place = {"namespace": NAMESPACE} if kind.namespaced else {}
            kind.server_side_apply(body=body, name=body["metadata"]["name"], field_manager="kopf", **place)
            dynamic.resources.invalidate_cache()
    wait("gardens", lambda: find(dynamic, {"apiVersion": "people.example/v1", "kind": "Garden"}))


def find(dynamic, body):
    dynamic.resources.invalidate_cache()
    found = dynamic.resources.search(api_version=body["apiVersion"], kind=body["kind"])
    return found[0] if found else None


@case
def startup():
    start(priority=100, port=18443)
    hooks = client.AdmissionregistrationV1Api()
    wait("webhooks", lambda: "gardens.people.example" in [h.metadata.name for h in hooks.list_validating_webhook_configuration().items])
    wait("peering", lambda: custom.get_namespaced_custom_object("kopf.dev", "v1", NAMESPACE, "kopfpeerings", "gardeners").get("status"))


@case
def create_handler():
    wait("webhooks that answer", lambda: tried_garden("one"))
    wait("the status", lambda: status("one").get("planted") == 3)
    assert status("one")["plant"] == {"child": "one-plants"}, status("one")
    child = core.read_namespaced_config_map("one-plants", NAMESPACE)
    assert child.data == {"plants": "3"} and child.metadata.owner_references[0].kind == "Garden"


def tried_garden(name):
    try:
        return garden(name)
    except ApiException as error:
        assert error.status == 500 and "webhook" in error.body, error.body
        return None


@case
def finalizer_is_added():
    assert read("one")["metadata"]["finalizers"] == ["people.example/garden"]


@case
def last_handled_annotation():
    annotation = "kopf.zalando.org/last-handled-configuration"
    wait("the annotation", lambda: annotation in read("one")["metadata"]["annotations"])


@case
def events_are_posted():
    wait("events", lambda: any(e.message == "Planted" and e.involved_object.kind == "Garden" for e in core.list_namespaced_event(NAMESPACE).items))


@case
def mutating_webhook():
    assert read("one")["spec"]["color"] == "green"


@case
def validating_webhook():
    try:
        garden("many", plants=51)
    except ApiException as error:
        assert error.status == 422 and "at most 50 plants" in error.body, error.body
    else:
        raise AssertionError("51 plants are taken")


@case
def update_handler():
    patch("one", {"spec": {"plants": 5}})
    wait("the status", lambda: status("one").get("changed") == "3 to 5 by 1")


@case
def field_handler():
    patch("one", {"metadata": {"labels": {"season": "autumn"}}})
    wait("the status", lambda: status("one").get("season") == "None to autumn")


@case
def temporary_errors():
    garden("two", retry="yes")
    wait("the third try", lambda: status("two").get("stubborn") == {"tries": 3})


@case
def permanent_error():
    garden("three", fail="yes")
    wait("the other handler", lambda: status("three").get("planted") == 3)
    wait("an event", lambda: any(e.type == "Error" and "never" in e.message for e in core.list_namespaced_event(NAMESPACE).items))


@case
def subhandlers():
    garden("four", plants=2, parts="yes")
    wait("both parts", lambda: status("four").get("parts/part-1") == {"number": 1} and status("four").get("parts/part-0"))


@case
def timer():
    garden("five", timer="yes")
    wait("three times", lambda: status("five").get("grown", 0) >= 3)


@case
def daemon():
    garden("six", daemon="yes")
    wait("its work", lambda: "six-sings" in names(core.list_namespaced_config_map))


@case
def index():
    for name in "ab":
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": name, "labels": {"watered": "rain"}}})
    time.sleep(1)
    patch("one", {"metadata": {"annotations": {"count": "rain"}}})
    wait("two of the index", lambda: status("one").get("indexed") == 2)


@case
def deletion():
    """The finalizer holds the object until the handler has run; the child goes with its owner; the daemon ends."""
    for name in ("one", "six"):
        custom.delete_namespaced_custom_object(*PLACE, name)
    wait("its end", lambda: read("one") is None and read("six") is None)
    assert {"one-cleared", "six-sang"} <= set(names(core.list_namespaced_config_map))
    wait("the end of the child", lambda: "one-plants" not in names(core.list_namespaced_config_map))


@case
def second_operator_waits():
    start(priority=10, port=18444)
    second = f"{SCRATCH}/operator-1.log"
    wait("the pause", lambda: "Pausing the watch-stream for gardens" in open(second, encoding="utf-8").read())


@case
def other_operator_takes_over():
    """The first ends and removes itself from the peering; the second acts, and resumes gardens that it finds."""
    stop(operators[0])
    wait("the second", lambda: status("two").get("resumed") and tried_garden("seven"))
    wait("its work", lambda: status("seven").get("planted") == 3)


@case
def watch_is_renewed():
    """Watches end by the time limit that the operator asks for, and go on where they were."""
    time.sleep(6)
    patch("seven", {"spec": {"plants": 4}})
    wait("the change", lambda: status("seven").get("changed") == "3 to 4 by 1")


@case
def killed_operator_resumes():
    operators[1].kill()
    operators[1].wait()
    custom.delete_namespaced_custom_object(*PLACE, "seven")
    time.sleep(0.5)
    assert read("seven")["metadata"]["deletionTimestamp"]
    start(priority=200, port=18444)
    wait("its end", lambda: read("seven") is None)
    assert "seven-cleared" in names(core.list_namespaced_config_map)


@case
def no_error_of_the_server():
    """What operators write to their logs of requests that failed."""
    lines = [line for number in range(len(operators)) for line in open(f"{SCRATCH}/operator-{number}.log", encoding="utf-8")]
    wrong = [line for line in lines if "Traceback" in line or "APIServerError" in line or "APIClientError" in line]
    assert not wrong, wrong[:3]


@case
def shutdown():
    stop(operators[-1])
    assert operators[-1].returncode == 0, operators[-1].returncode
    for name in ("two", "three", "four", "five"):
        patch(name, {"metadata": {"finalizers": None}})


try:
    run_cases()
finally:
    for left in operators:
        if left.poll() is None:
            left.kill()
