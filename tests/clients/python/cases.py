"""Cases of `kubernetes`, the client of Python. One line a case: its name, ok or failed, and the reason, between tabs."""

import inspect
import io
import os
import tarfile
import threading
import time

import yaml
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.informer import SharedInformer
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from kubernetes.stream import portforward, stream

from case_runner import case, run_cases

NAMESPACE = os.environ["NAMESPACE"]
IMAGE = os.environ["IMAGE"]
DEFINITION = os.environ["DEFINITION"]
GROUP = "people.example"
SECONDS = 30

config.load_kube_config()
core = client.CoreV1Api()
apps = client.AppsV1Api()
custom = client.CustomObjectsApi()


def refused(status, reason, function, *args, **kwargs):
    """What the server says when it refuses the call; the case fails if it takes it, or refuses it for another reason."""
    try:
        function(*args, **kwargs)
    except ApiException as error:
        assert (error.status, yaml.safe_load(error.body)["reason"]) == (status, reason), error.body
        return yaml.safe_load(error.body)
    raise AssertionError(f"{function.__name__} was not refused")


def wait(what, function):
    end = time.monotonic() + SECONDS
    while not (value := function()):
        assert time.monotonic() < end, f"{what} did not come in {SECONDS} s"
        time.sleep(0.1)
    return value


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"of": "python"}), data=data)


def pod(name, *command):
    container = client.V1Container(name="c", image=IMAGE, command=list(command))
    spec = client.V1PodSpec(containers=[container], restart_policy="Never", termination_grace_period_seconds=1)
    return client.V1Pod(metadata=client.V1ObjectMeta(name=name, labels={"of": "python"}), spec=spec)


@case
def version():
    assert client.VersionApi().get_code().minor.startswith("25")


@case
def groups_and_resources():
    groups = {group.name for group in client.ApisApi().get_api_versions().groups}
    assert {"apps", "batch", "rbac.authorization.k8s.io"} <= groups, groups
    resources = {r.name: r for r in apps.get_api_resources().resources}
    assert "patch" in resources["deployments"].verbs and "deployments/scale" in resources


@case
def every_kind_is_listed():
    """Each list method that takes no argument, of each group that the server serves, makes objects of its own types."""
    served = {version.group_version for g in client.ApisApi().get_api_versions().groups for version in g.versions} | {"v1"}
    count = 0
    for name, api in inspect.getmembers(client, inspect.isclass):
        if not name.endswith("Api") or name in ("CustomObjectsApi", "EventsV1Api", "LogsApi"):
            continue
        for method, function in inspect.getmembers(api, inspect.isfunction):
            needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind != p.VAR_KEYWORD]
            if not method.startswith("list_") or method.endswith(("_with_http_info", "_without_preload_content")) or len(needed) > 1:
                continue
            try:
                listed = getattr(api(), method)()
            except ApiException as error:
                assert error.status == 404 and not is_served(api, method, served), f"{name}.{method}: {error.status} {error.body}"
                continue
            # Statuses of components are made when they are asked for.
            assert listed.metadata.resource_version or method == "list_component_status", method
            count += 1
    assert count > 45, count


def is_served(api, method, served):
    """Whether the server names the resource of a list method in its discovery."""
    try:
        resources = api().get_api_resources().resources
    except ApiException:
        return False
    kind = method.removeprefix("list_").removesuffix("_for_all_namespaces").replace("_", "")
    return any(r.kind.lower() == kind for r in resources)


@case
def create_read_list():
    made = core.create_namespaced_config_map(NAMESPACE, config_map("a", k="v"), field_manager="python")
    assert made.metadata.uid and made.metadata.creation_timestamp.tzinfo
    assert made.metadata.managed_fields[0].manager == "python"
    assert core.read_namespaced_config_map("a", NAMESPACE).data == {"k": "v"}
    assert [o.metadata.name for o in core.list_namespaced_config_map(NAMESPACE, label_selector="of=python").items] == ["a"]
    assert [o.metadata.name for o in core.list_namespaced_config_map(NAMESPACE, field_selector="metadata.name=a").items] == ["a"]


@case
def binary_and_strings_of_secrets():
    secret = client.V1Secret(metadata=client.V1ObjectMeta(generate_name="s-"), string_data={"k": "v"})
    made = core.create_namespaced_secret(NAMESPACE, secret)
    assert made.data == {"k": "dg=="} and made.metadata.name.startswith("s-") and made.type == "Opaque"


@case
def list_in_chunks():
    for number in range(7):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"chunk-{number}"))
    names, token, remaining = [], None, []
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, limit=3, _continue=token)
        names += [o.metadata.name for o in page.items]
        remaining.append(page.metadata.remaining_item_count)
        token = page.metadata._continue if hasattr(page.metadata, "_continue") else page.metadata.var_continue
        if not token:
            break
    assert len(set(names)) == len(names) and len([n for n in names if n.startswith("chunk-")]) == 7, names
    assert remaining[-1] is None and all(remaining[:-1]), remaining


@case
def replace_and_conflict():
    old = core.read_namespaced_config_map("a", NAMESPACE)
    new = core.read_namespaced_config_map("a", NAMESPACE)
    new.data["k"] = "w"
    core.replace_namespaced_config_map("a", NAMESPACE, new)
    refused(409, "Conflict", core.replace_namespaced_config_map, "a", NAMESPACE, old)


@case
def patch_strategic():
    core.create_namespaced_pod(NAMESPACE, pod("patched", "sleep", "1000"))
    body = {"spec": {"containers": [{"name": "c", "image": IMAGE + "-other"}]}}
    patched = core.patch_namespaced_pod("patched", NAMESPACE, body)
    assert patched.spec.containers[0].command == ["sleep", "1000"], "the container is merged by its name"
    core.delete_namespaced_pod("patched", NAMESPACE, grace_period_seconds=0)


@case
def patch_merge_and_json():
    merged = core.patch_namespaced_config_map("a", NAMESPACE, {"data": {"k": None, "m": "1"}}, _content_type="application/merge-patch+json")
    assert merged.data == {"m": "1"}
    operations = [{"op": "test", "path": "/data/m", "value": "1"}, {"op": "replace", "path": "/data/m", "value": "2"}]
    assert core.patch_namespaced_config_map("a", NAMESPACE, operations, _content_type="application/json-patch+json").data == {"m": "2"}
    refused(422, "Invalid", core.patch_namespaced_config_map, "a", NAMESPACE, operations, _content_type="application/json-patch+json")


@case
def apply_and_conflict():
    def applied(value, manager, force=None):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"k": value}}
        return core.patch_namespaced_config_map(
            "applied", NAMESPACE, body, field_manager=manager, force=force, _content_type="application/apply-patch+yaml"
        )

    assert applied("v", "one").data == {"k": "v"}
    status = refused(409, "Conflict", applied, "w", "two")
    assert status["details"]["causes"][0]["field"] == ".data.k", status
    assert [m.manager for m in applied("w", "two", True).metadata.managed_fields] == ["two"]


@case
def dry_run():
    core.create_namespaced_config_map(NAMESPACE, config_map("dry"), dry_run="All")
    refused(404, "NotFound", core.read_namespaced_config_map, "dry", NAMESPACE)


def as_json(method, query, body):
    """A request for ConfigMaps past the client's types, which would not send what they do not know."""
    api = client.ApiClient()
    path = f"{api.configuration.host}/api/v1/namespaces/{NAMESPACE}/configmaps?{query}"
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    answer = api.rest_client.request(method, path, headers=headers, body=body)
    answer.read()
    if answer.status >= 300:
        raise ApiException.from_response(http_resp=answer, body=answer.data.decode(), data=None)
    return answer


@case
def field_validation():
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "strict"}, "dota": {"k": "v"}}
    status = refused(400, "BadRequest", as_json, "POST", "fieldValidation=Strict", body)
    assert 'unknown field "dota"' in status["message"], status
    answer = as_json("POST", "fieldValidation=Warn", body)
    assert "unknown field" in answer.getheader("warning"), answer.getheader("warning")


@case
def refusals():
    refused(404, "NotFound", core.read_namespaced_config_map, "none", NAMESPACE)
    refused(409, "AlreadyExists", core.create_namespaced_config_map, NAMESPACE, config_map("a"))
    status = refused(422, "Invalid", core.create_namespaced_config_map, NAMESPACE, config_map("A_b"))
    assert status["details"]["causes"][0]["field"] == "metadata.name", status


@case
def watch_changes():
    start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    seen = []

    def change():
        core.create_namespaced_config_map(NAMESPACE, config_map("seen", k="v"))
        core.patch_namespaced_config_map("seen", NAMESPACE, {"data": {"k": "w"}})
        core.delete_namespaced_config_map("seen", NAMESPACE)

    threading.Timer(0.3, change).start()
    watcher = watch.Watch()
    for event in watcher.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=start, timeout_seconds=SECONDS):
        seen.append((event["type"], event["object"].metadata.name, event["object"].data["k"]))
        if len(seen) == 3:
            watcher.stop()
    assert seen == [("ADDED", "seen", "v"), ("MODIFIED", "seen", "w"), ("DELETED", "seen", "w")], seen


@case
def watch_bookmarks_and_end():
    events = watch.Watch().stream(
        core.list_namespaced_config_map, NAMESPACE, allow_watch_bookmarks=True, timeout_seconds=2, label_selector="of=python"
    )
    kinds = [event["type"] for event in events]
    assert kinds.count("ADDED") >= 8, kinds


@case
def informer():
    added, deleted = [], []
    shared = SharedInformer(list_func=core.list_namespaced_config_map, namespace=NAMESPACE, label_selector="of=python")
    shared.add_event_handler("ADDED", lambda o: added.append(o.metadata.name))
    shared.add_event_handler("DELETED", lambda o: deleted.append(o.metadata.name))
    shared.start()
    wait("the list", lambda: "a" in added)
    core.create_namespaced_config_map(NAMESPACE, config_map("informed"))
    wait("the new object", lambda: shared.cache.get_by_key(f"{NAMESPACE}/informed"))
    core.delete_namespaced_config_map("informed", NAMESPACE)
    wait("its end", lambda: "informed" in deleted)
    shared.stop()


@case
def deployment_and_scale():
    labels = {"app": "python"}
    template = client.V1PodTemplateSpec(metadata=client.V1ObjectMeta(labels=labels), spec=pod("t", "sleep", "1000").spec)
    template.spec.restart_policy = "Always"
    spec = client.V1DeploymentSpec(replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template)
    apps.create_namespaced_deployment(NAMESPACE, client.V1Deployment(metadata=client.V1ObjectMeta(name="d"), spec=spec))
    wait("one replica", lambda: apps.read_namespaced_deployment_status("d", NAMESPACE).status.ready_replicas == 1)
    assert apps.read_namespaced_deployment_scale("d", NAMESPACE).status.selector == "app=python"
    apps.patch_namespaced_deployment_scale("d", NAMESPACE, {"spec": {"replicas": 2}})
    wait("two replicas", lambda: apps.read_namespaced_deployment("d", NAMESPACE).status.ready_replicas == 2)


@case
def status_subresource():
    apps.patch_namespaced_deployment_status("d", NAMESPACE, {"status": {"conditions": [{"type": "Own", "status": "True"}]}})
    conditions = {c.type for c in apps.read_namespaced_deployment("d", NAMESPACE).status.conditions}
    assert {"Own", "Available"} <= conditions, conditions


@case
def jobs():
    batch = client.BatchV1Api()
    template = client.V1PodTemplateSpec(spec=pod("t", "true").spec)
    job = client.V1Job(metadata=client.V1ObjectMeta(name="j"), spec=client.V1JobSpec(template=template))
    batch.create_namespaced_job(NAMESPACE, job)
    wait("the job's end", lambda: batch.read_namespaced_job_status("j", NAMESPACE).status.succeeded == 1)
    batch.delete_namespaced_job("j", NAMESPACE, propagation_policy="Background")
    wait("the end of its pods", lambda: not core.list_namespaced_pod(NAMESPACE, label_selector="job-name=j").items)


@case
def logs():
    core.create_namespaced_pod(NAMESPACE, pod("logs", "sh", "-c", "for i in 1 2 3; do echo line $i; done; sleep 1000"))
    wait("the pod", lambda: core.read_namespaced_pod("logs", NAMESPACE).status.phase == "Running")
    wait("lines", lambda: core.read_namespaced_pod_log("logs", NAMESPACE).splitlines() == ["line 1", "line 2", "line 3"])
    assert core.read_namespaced_pod_log("logs", NAMESPACE, tail_lines=1).strip() == "line 3"
    lines, watcher = [], watch.Watch()
    for line in watcher.stream(core.read_namespaced_pod_log, "logs", NAMESPACE, follow=True):
        lines.append(line)
        if len(lines) == 3:
            watcher.stop()
            break
    assert lines == ["line 1", "line 2", "line 3"], lines


def exec_in(*command, **options):
    return stream(
        core.connect_get_namespaced_pod_exec, "logs", NAMESPACE, command=list(command), stderr=True, stdout=True, tty=False, **options
    )


@case
def exec_output():
    assert exec_in("echo", "hi", stdin=False).strip() == "hi"


@case
def exec_streams_and_code():
    session = exec_in("sh", "-c", "read x; echo out $x; echo err $x >&2; exit 7", stdin=True, _preload_content=False)
    session.write_stdin("data\n")
    session.run_forever(timeout=SECONDS)
    assert session.read_stdout().strip() == "out data", "standard output"
    assert session.read_stderr().strip() == "err data", "standard error"
    assert session.returncode == 7, session.returncode


@case
def copy_by_tar():
    """As the client's example copies files: an archive into the standard input of tar."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("copied")
        entry.size = 100_000
        tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    session = exec_in("tar", "xf", "-", "-C", "/tmp", stdin=True, _preload_content=False)
    session.write_stdin(archive.getvalue())
    session.run_forever(timeout=2)
    session.close()
    assert exec_in("ls", "-l", "/tmp/copied", stdin=False).split()[4] == "100000"


@case
def port_forward():
    script = "while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nyes' | nc -l -p 8080; done"
    core.create_namespaced_pod(NAMESPACE, pod("web", "sh", "-c", script))
    wait("the pod", lambda: core.read_namespaced_pod("web", NAMESPACE).status.phase == "Running")
    time.sleep(0.5)
    forward = portforward(core.connect_get_namespaced_pod_portforward, "web", NAMESPACE, ports="8080")
    socket = forward.socket(8080)
    socket.settimeout(SECONDS)
    socket.sendall(b"GET / HTTP/1.0\r\n\r\n")
    answer = b""
    while not answer.endswith(b"yes") and (part := socket.recv(1000)):
        answer += part
    assert answer.endswith(b"yes"), answer
    assert forward.error(8080) is None


@case
def eviction():
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name="web"))
    core.create_namespaced_pod_eviction("web", NAMESPACE, body)
    wait("its end", lambda: "web" not in [p.metadata.name for p in core.list_namespaced_pod(NAMESPACE).items])


@case
def ephemeral_container():
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": IMAGE, "command": ["sleep", "1000"]}]}}
    core.patch_namespaced_pod_ephemeralcontainers("logs", NAMESPACE, body)
    wait("its start", lambda: any(s.state.running for s in core.read_namespaced_pod("logs", NAMESPACE).status.ephemeral_container_statuses or []))


@case
def tokens_and_access():
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=600))
    token = core.create_namespaced_service_account_token("default", NAMESPACE, request).status.token
    review = client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token))
    user = client.AuthenticationV1Api().create_token_review(review).status.user
    assert user.username == f"system:serviceaccount:{NAMESPACE}:default"
    other = client.ApiClient(client.Configuration.get_default_copy())
    attributes = client.V1ResourceAttributes(namespace=NAMESPACE, verb="create", resource="pods")
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
    assert client.AuthorizationV1Api(other).create_self_subject_access_review(review).status.allowed


@case
def in_the_cluster():
    """A client with a service account's token alone, which roles limit."""
    rbac = client.RbacAuthorizationV1Api()
    rule = client.V1PolicyRule(api_groups=[""], resources=["configmaps"], verbs=["get", "list"])
    rbac.create_namespaced_role(NAMESPACE, client.V1Role(metadata=client.V1ObjectMeta(name="r"), rules=[rule]))
    subject = client.RbacV1Subject(kind="ServiceAccount", name="default", namespace=NAMESPACE)
    role = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="Role", name="r")
    rbac.create_namespaced_role_binding(
        NAMESPACE, client.V1RoleBinding(metadata=client.V1ObjectMeta(name="r"), subjects=[subject], role_ref=role)
    )
    spec = client.V1TokenRequestSpec(audiences=[], expiration_seconds=600)
    token = core.create_namespaced_service_account_token("default", NAMESPACE, client.AuthenticationV1TokenRequest(spec=spec)).status.token
    limited = client.Configuration.get_default_copy()
    limited.cert_file = limited.key_file = None
    limited.api_key = {"authorization": f"Bearer {token}"}
    as_account = client.CoreV1Api(client.ApiClient(limited))
    wait("the role", lambda: is_allowed(as_account.list_namespaced_config_map, NAMESPACE))
    status = refused(403, "Forbidden", as_account.list_namespaced_secret, NAMESPACE)
    assert "cannot list resource" in status["message"], status


def is_allowed(function, *args):
    try:
        return bool(function(*args).items)
    except ApiException:
        return False


@case
def events():
    reference = client.V1ObjectReference(kind="ConfigMap", name="a", namespace=NAMESPACE, api_version="v1")
    body = client.CoreV1Event(
        metadata=client.V1ObjectMeta(generate_name="e-"), involved_object=reference, reason="Tried", message="a text", type="Normal"
    )
    core.create_namespaced_event(NAMESPACE, body)
    found = core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=a,reason=Tried").items
    assert [e.message for e in found] == ["a text"]


@case
def metrics():
    wait("usage of the node", lambda: [n["usage"]["memory"] for n in utils.get_nodes_metrics(client.ApiClient())["items"]])


@case
def events_of_their_own_group():
    """Without a time of the event, as those of the core group have none: Kubernetes' server answers null too, which the client's type refuses."""
    assert any(e.reason == "Tried" for e in client.EventsV1Api().list_namespaced_event(NAMESPACE).items)


@case
def leader_election():
    led = threading.Event()

    def lead():
        led.set()
        time.sleep(3)

    lock = LeaseLock("leader", NAMESPACE, "one")
    elected = electionconfig.Config(lock, lease_duration=3, renew_deadline=2, retry_period=1, onstarted_leading=lead, onstopped_leading=lambda: None)
    threading.Thread(target=leaderelection.LeaderElection(elected).run, daemon=True).start()
    assert led.wait(SECONDS)
    lease = client.CoordinationV1Api().read_namespaced_lease("leader", NAMESPACE)
    assert lease.spec.holder_identity == "one" and lease.spec.renew_time


@case
def from_yaml():
    text = """
{apiVersion: v1, kind: Service, metadata: {name: y}, spec: {selector: {app: y}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: ConfigMap, metadata: {name: y}, data: {k: v}}]}
"""
    utils.create_from_yaml(client.ApiClient(), yaml_objects=yaml.safe_load_all(text), namespace=NAMESPACE)
    assert core.read_namespaced_service("y", NAMESPACE).spec.cluster_ip
    assert core.read_namespaced_config_map("y", NAMESPACE).data == {"k": "v"}


@case
def define():
    with open(DEFINITION, encoding="utf-8") as file:
        body = yaml.safe_load(file)
    extensions = client.ApiextensionsV1Api()
    extensions.create_custom_resource_definition(body)
    name = body["metadata"]["name"]

    def is_established():
        conditions = extensions.read_custom_resource_definition(name).status.conditions or []
        return any(c.type == "Established" and c.status == "True" for c in conditions)

    wait("the definition", is_established)


@case
def custom_objects():
    place = (GROUP, "v1", NAMESPACE, "crontabs")
    body = {"apiVersion": f"{GROUP}/v1", "kind": "CronTab", "metadata": {"name": "c"}, "spec": {"cronSpec": "* 5"}}
    made = custom.create_namespaced_custom_object(*place, body)
    assert made["spec"]["replicas"] == 1, "the schema's default"
    assert [o["metadata"]["name"] for o in custom.list_namespaced_custom_object(*place)["items"]] == ["c"]
    assert custom.list_cluster_custom_object(GROUP, "v1", "crontabs")["items"]
    assert custom.patch_namespaced_custom_object(*place, "c", {"spec": {"replicas": 2}})["spec"]["replicas"] == 2
    status = refused(422, "Invalid", custom.patch_namespaced_custom_object, *place, "c", {"spec": {"replicas": 5}})
    assert "fewer than five" in status["message"], status
    custom.patch_namespaced_custom_object_status(*place, "c", {"status": {"replicas": 2}})
    assert custom.get_namespaced_custom_object_scale(*place, "c")["status"]["replicas"] == 2
    scale = custom.patch_namespaced_custom_object_scale(*place, "c", {"spec": {"replicas": 3}})
    assert scale["spec"]["replicas"] == 3
    new = custom.get_namespaced_custom_object(*place, "c")
    new["status"] = {"replicas": 9}
    assert custom.replace_namespaced_custom_object(*place, "c", new)["status"] == {"replicas": 2}, "the status has a door of its own"


@case
def watch_custom_objects():
    place = (GROUP, "v1", NAMESPACE, "crontabs")
    change = {"metadata": {"labels": {"x": "y"}}}
    threading.Timer(0.3, custom.patch_namespaced_custom_object, (*place, "c", change)).start()
    watcher, seen = watch.Watch(), []
    for event in watcher.stream(custom.list_namespaced_custom_object, *place, timeout_seconds=SECONDS):
        seen.append(event["type"])
        if len(seen) == 2:
            watcher.stop()
    assert seen == ["ADDED", "MODIFIED"], seen


@case
def dynamic_client():
    found = dynamic.DynamicClient(client.ApiClient())
    maps = found.resources.get(api_version="v1", kind="ConfigMap")
    maps.create(body={"metadata": {"name": "dynamic"}, "data": {"k": "v"}, "kind": "ConfigMap", "apiVersion": "v1"}, namespace=NAMESPACE)
    patched = maps.patch(name="dynamic", namespace=NAMESPACE, body={"data": {"k": "w"}}, content_type="application/merge-patch+json")
    assert patched.data.k == "w"
    assert len(maps.get(namespace=NAMESPACE, label_selector="of=python").items) > 5
    applied = maps.server_side_apply(
        name="dynamic-applied", namespace=NAMESPACE, field_manager="python", 
        body={"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dynamic-applied"}, "data": {"k": "v"}},
    )
    assert applied.metadata.managedFields[0].operation == "Apply"
    maps.delete(name="dynamic", namespace=NAMESPACE)
    deployments = found.resources.get(api_version="apps/v1", kind="Deployment")
    assert deployments.scale.get(name="d", namespace=NAMESPACE).spec.replicas == 2


@case
def dynamic_custom():
    crontabs = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version=f"{GROUP}/v1", kind="CronTab")
    assert crontabs.short_names == ["ct"] and "all" in crontabs.categories
    crontabs.server_side_apply(
        name="applied", namespace=NAMESPACE, field_manager="python",
        body={"apiVersion": f"{GROUP}/v1", "kind": "CronTab", "metadata": {"name": "applied"}, "spec": {"cronSpec": "1"}},
    )
    assert crontabs.get(name="applied", namespace=NAMESPACE).spec.cronSpec == "1"
    crontabs.status.patch(name="applied", namespace=NAMESPACE, body={"status": {"replicas": 4}}, content_type="application/merge-patch+json")
    seen = [e["type"] for e in crontabs.watch(namespace=NAMESPACE, timeout=1)]
    assert seen == ["ADDED", "ADDED"], seen


@case
def dynamic_describes_all():
    """Discovery of every resource of every group, as the dynamic client caches it."""
    found = dynamic.DynamicClient(client.ApiClient()).resources
    resources = [r for kinds in found for r in kinds if hasattr(r, "verbs")]
    assert len({(r.group_version, r.kind) for r in resources}) > 50, len(resources)


@case
def openapi():
    text = client.ApiClient().call_api("GET", client.Configuration.get_default_copy().host + "/openapi/v2", {"Accept": "application/json"})
    document = yaml.safe_load(text.read()) if hasattr(text, "read") else text
    assert document["swagger"] == "2.0"


@case
def delete_collection_and_options():
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="of=python")
    assert not core.list_namespaced_config_map(NAMESPACE, label_selector="of=python").items
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"))
    refused(409, "Conflict", core.delete_namespaced_config_map, "y", NAMESPACE, body=wrong)
    apps.delete_namespaced_deployment("d", NAMESPACE, propagation_policy="Foreground")
    wait("the deployment's end", lambda: not apps.list_namespaced_deployment(NAMESPACE).items)
    assert not core.list_namespaced_pod(NAMESPACE, label_selector="app=python").items, "pods go first"


@case
def delete_definition():
    client.ApiextensionsV1Api().delete_custom_resource_definition("crontabs.people.example")
    wait("its end", lambda: not is_defined())


def is_defined():
    try:
        return bool(client.ApiextensionsV1Api().read_custom_resource_definition("crontabs.people.example"))
    except ApiException as error:
        assert error.status == 404, error
        return False


run_cases()
