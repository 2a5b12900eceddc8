"""An operator of `Garden` objects: each kind of handler that kopf has. Run by `kopf run`; what it did lies in the objects' status and in ConfigMaps."""

import asyncio
import os

import kopf
import kubernetes

GROUP = ("people.example", "v1", "gardens")
FINALIZER = "people.example/garden"


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def create(namespace, body):
    await asyncio.to_thread(kubernetes.client.CoreV1Api().create_namespaced_config_map, namespace, body)


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_):
    kubernetes.config.load_kube_config()
    settings.persistence.finalizer = FINALIZER
    settings.watching.server_timeout = 5
    settings.posting.loggers = True
    settings.peering.name = "gardeners"
    settings.peering.mandatory = True
    settings.admission.server = kopf.WebhookServer(
        addr="0.0.0.0", host=os.environ["WEBHOOK_HOST"], port=int(os.environ["WEBHOOK_PORT"]), certfile=os.environ["WEBHOOK_CERT"],
        pkeyfile=os.environ["WEBHOOK_KEY"], cadata=open(os.environ["WEBHOOK_CERT"], "rb").read(),
    )
    settings.admission.managed = "gardens.people.example"


@kopf.on.mutate(*GROUP, operation="CREATE")
def color(spec, patch, warnings, **_):
    warnings.append("a garden needs water")
    if "color" not in spec:
        patch.spec["color"] = "green"


@kopf.on.validate(*GROUP)
def plants_are_few(spec, **_):
    if spec.get("plants", 0) > 50:
        raise kopf.AdmissionError("at most 50 plants", code=422)


@kopf.on.create(*GROUP)
async def plant(spec, name, namespace, patch, logger, **_):
    """Makes a child, owned by the garden, and writes the status."""
    body = config_map(f"{name}-plants", plants=str(spec.get("plants")))
    kopf.adopt(body)
    await create(namespace, body)
    patch.status["planted"] = spec.get("plants")
    logger.info("Planted")
    return {"child": f"{name}-plants"}


@kopf.on.create(*GROUP, annotations={"retry": kopf.PRESENT}, id="stubborn")
def stubborn(retry, **_):
    if retry < 2:
        raise kopf.TemporaryError("not yet", delay=0.3)
    return {"tries": retry + 1}


@kopf.on.create(*GROUP, annotations={"fail": kopf.PRESENT}, id="hopeless")
def hopeless(**_):
    raise kopf.PermanentError("never")


@kopf.on.create(*GROUP, annotations={"parts": kopf.PRESENT}, id="parts")
async def parts(spec, **_):
    for number in range(spec["plants"]):

        @kopf.subhandler(id=f"part-{number}")
        def part(number=number, **_):
            return {"number": number}


@kopf.on.update(*GROUP, field="spec")
def replant(old, new, diff, patch, **_):
    patch.status["changed"] = f"{old.get('plants')} to {new.get('plants')} by {len(diff)}"


@kopf.on.field(*GROUP, field="metadata.labels.season")
def season(old, new, patch, **_):
    patch.status["season"] = f"{old} to {new}"


@kopf.on.resume(*GROUP)
def resume(patch, **_):
    patch.status["resumed"] = True


@kopf.on.delete(*GROUP)
async def clear(name, namespace, **_):
    await create(namespace, config_map(f"{name}-cleared"))


@kopf.on.event("", "v1", "configmaps", labels={"watered": kopf.PRESENT})
def watered(event, name, memo, **_):
    memo["seen"] = memo.get("seen", 0) + 1


@kopf.timer(*GROUP, interval=0.5, annotations={"timer": kopf.PRESENT})
def grow(status, patch, **_):
    patch.status["grown"] = status.get("grown", 0) + 1


@kopf.daemon(*GROUP, annotations={"daemon": kopf.PRESENT}, cancellation_timeout=2)
async def sing(stopped, name, namespace, **_):
    await create(namespace, config_map(f"{name}-sings"))
    await stopped.wait()
    await create(namespace, config_map(f"{name}-sang"))


@kopf.index("", "v1", "configmaps", labels={"watered": kopf.PRESENT})
def by_water(name, labels, **_):
    return {labels["watered"]: name}


@kopf.on.field(*GROUP, field="metadata.annotations.count")
def count(by_water, new, patch, **_):
    patch.status["indexed"] = len(list(by_water.get(new, [])))
