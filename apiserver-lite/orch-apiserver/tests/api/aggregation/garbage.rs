//! Owners and dependents on both sides: objects of another API server go with owners of this one, and the other way round.

use std::time::Duration;

use apiserver_garbage::Garbage;
use proto_daemon::drain::Drain;
use proto_daemon::statusz::StatusBoard;
use proto_daemon::work_queue::WorkQueueMetrics;
use serde_json::{Value, json};

use super::World;
use super::backend::partial;
use super::controllers::{client, flunder, left};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn owned_by(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}])
}

async fn add_config_map(world: &World, name: &str, owners: Value) -> String {
    let object = json!({"metadata": {"name": name, "ownerReferences": owners}});
    let made = world.server.post(CONFIG_MAPS, object.to_string()).await;
    made.expect(201)["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not so in a minute: {what}");
}

#[tokio::test]
async fn objects_of_other_servers_are_garbage_collected() {
    let test = "objects_of_other_servers_are_garbage_collected";
    let Some(world) = World::new(test).await else { return };
    world.ready().await;
    let uid = add_config_map(&world, "owner", json!([])).await;
    let mut owned = flunder("default", "owned");
    owned["metadata"]["ownerReferences"] = owned_by("v1", "ConfigMap", "owner", &uid);
    let parent = flunder("default", "parent");
    world.backend.flunders.lock().unwrap().extend([owned, parent.clone()]);
    let api_version = "wardle.example.com/v1alpha1";
    add_config_map(&world, "child", owned_by(api_version, "Flunder", "parent", "uid-parent")).await;
    let older = "wardle.example.com/v1beta1";
    add_config_map(&world, "another", owned_by(older, "Flunder", "never", "uid-never")).await;
    let drain = Drain::default();
    let collector = Garbage {
        client: client(&world.server),
        workers: 4,
        metrics: WorkQueueMetrics::new().unwrap(),
        page: StatusBoard::default().task("test"),
    };
    let running = tokio::spawn(collector.run(drain.watch()));
    world.server.delete(&format!("{CONFIG_MAPS}/owner")).await.expect(200);
    wait_until("the owned one is deleted", async || left(&world) == ["default/parent"]).await;
    let is_there =
        async |name: &str| world.server.get(&format!("{CONFIG_MAPS}/{name}")).await.code() == 200;
    assert!(is_there("child").await);
    world.backend.flunders.lock().unwrap().clear();
    let event = json!({"type": "DELETED", "object": partial(&parent)});
    world.backend.events.send(format!("{event}\n").into()).await.unwrap();
    wait_until("its child is deleted", async || !is_there("child").await).await;
    assert!(is_there("another").await, "its owner may be on a server that is not known");
    running.abort();
}
